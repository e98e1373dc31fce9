"""What the case modules share.  A case is a function that every rank of a job runs:

    @case(2, 3)
    def sums_are_exact(): ...

test_cases.py makes a test of each case and size.  Each case runs between ``init`` and
``barrier`` + ``shutdown``, in processes that have run other cases before.

gpu/test_device_cases.py runs cases again with all tensors on a device (HVD_TEST_DEVICE).
"""
import contextlib
import functools
import os
import random

import torch

import horovod.torch as hvd

ALL = (1, 2, 3, 4)
registry = []


def _on_device():
    """The context in which HVD_TEST_DEVICE wants a case to run."""
    kind = os.environ.get("HVD_TEST_DEVICE")
    if kind is None:
        return contextlib.nullcontext()
    from gpu import kinds
    return kinds.installed(kind)


def case(*sizes, env=None, limit=60.0, started=True):
    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            if started:
                hvd.init()
            torch.manual_seed(1234)
            random.seed(1234)
            with _on_device():
                function()
            if started:
                hvd.barrier()
                hvd.shutdown()
        registry.append((wrapper, sizes or ALL, env or {}, limit))
        return wrapper
    return decorate


def raises(kind, call, *args, **kwargs):
    """The exception that the call raises."""
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"{getattr(call, '__name__', call)} did not raise "
                         f"{getattr(kind, '__name__', kind)}")


def same_on_all_ranks(*tensors, process_set=hvd.global_process_set):
    """Whether all members hold the same bits."""
    for t in tensors:
        flat = t.detach().contiguous().reshape(-1).view(torch.uint8).unsqueeze(0)
        gathered = hvd.allgather(flat, process_set=process_set)
        assert bool((gathered == flat).all()), "ranks differ"


def close(a, b, rtol=1e-5, atol=1e-6):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def equal(a, b):
    assert torch.equal(a, b), f"{a} != {b}"
