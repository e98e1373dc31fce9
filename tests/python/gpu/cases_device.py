"""What only tensors on a device can show, in a job of two ranks (test_device_cases.py runs it)."""
import functools
import warnings
from unittest import mock

import torch

import horovod.torch as hvd
from cases import raises, same_on_all_ranks
from gpu import kinds
from horovod.gpu_check import worker
from horovod.torch import _gpu, mpi_ops


def on_device(function):
    """A job and a device around a function; ``kind`` is one of kinds.py."""
    @functools.wraps(function)
    def wrapper(kind):
        hvd.init()
        torch.manual_seed(1234)
        with kinds.installed(kind, everything=False):
            function()
        hvd.barrier()
        hvd.shutdown()
    return wrapper


def _model():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(),
                               torch.nn.Linear(8, 2)).to("cuda")


def _step(model, optimizer, keep=False):
    optimizer.zero_grad(set_to_none=not keep)
    model(torch.randn(3, 4).to("cuda") + hvd.rank()).sum().backward()
    optimizer.step()


@on_device
def one_call_a_bucket():
    """Gradients are views of one tensor, which is handed over once a step."""
    model = _model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    _step(model, optimizer)
    with mock.patch.object(mpi_ops, "allreduce_async_", wraps=mpi_ops.allreduce_async_) as calls:
        for keep in (False, True, False):
            _step(model, optimizer, keep)
        assert calls.call_count == 3, calls.call_args_list
    assert len({id(p.grad.memory) for p in model.parameters()}) == 1
    same_on_all_ranks(*[p.detach().cpu() for p in model.parameters()])


@on_device
def kept_gradients_keep_their_values():
    weight = torch.nn.Parameter(torch.ones(5).to("cuda"))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0))
    kept = []
    for step in range(4):
        optimizer.zero_grad()
        (weight * float(step + hvd.rank())).sum().backward()
        optimizer.step()
        kept.append(weight.grad)
    for step, grad in enumerate(kept):
        assert grad.tolist() == [step + 0.5] * 5, (step, grad)


@on_device
def hooks_on_several_streams():
    """The stream that hands a bucket over waits for those of the other gradients."""
    first, second = [torch.nn.Parameter(torch.ones(50).to("cuda")) for _ in range(2)]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first, second], lr=0.0))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for step in range(6):
        optimizer.zero_grad()
        for param, stream in zip((second, first), streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                (param * float(step + hvd.rank())).sum().backward()
        with torch.cuda.stream(streams[1]):
            optimizer.synchronize()
            for param in (first, second):
                assert param.grad.tolist() == [step + 0.5] * 50, step
        with optimizer.skip_synchronize():
            optimizer.step()


@on_device
def two_streams_and_all_operations():
    """Results may be used on another stream than the one that made the input."""
    side = torch.cuda.Stream()
    for step in range(10):
        with torch.cuda.stream(side):
            mine = torch.full((4, 2), float(step + hvd.rank())).to("cuda")
            handles = [hvd.allreduce_async(mine, op=hvd.Sum), hvd.allgather_async(mine),
                       hvd.broadcast_async(mine, 1), hvd.alltoall_async(mine),
                       hvd.reducescatter_async(mine, op=hvd.Sum),
                       hvd.grouped_allreduce_async([mine, mine], op=hvd.Sum)]
        del mine
        total, gathered, sent, traded, part, group = [hvd.synchronize(h) for h in handles]
        assert total[0, 0] == 2 * step + 1 and bool((group[1] == total).all())
        assert gathered[:, 0].tolist() == [step] * 4 + [step + 1.0] * 4
        assert sent[3, 1] == step + 1 and traded[0][:, 0].tolist() == [step] * 2 + [step + 1.0] * 2
        assert part.shape == (2, 2) and part[1, 1] == 2 * step + 1


@on_device
def mixed_precision_and_skipped_steps():
    """A GradScaler's loop, with an overflow on one rank."""
    model = _model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         named_parameters=model.named_parameters(),
                                         compression=hvd.Compression.bf16)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4).to("cuda")).sum()
        (loss * (1e39 if step == 1 and hvd.rank() == 0 else 1.0)).backward()
        optimizer.synchronize()
        finite = all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())
        assert finite == (step != 1)
        if finite:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            assert all(bool((p == b).all()) for p, b in zip(model.parameters(), before))
    same_on_all_ranks(*[p.detach().cpu() for p in model.parameters()])


@on_device
def accumulated_and_silent_passes():
    weight = torch.nn.Parameter(torch.ones(3).to("cuda"))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.0),
                                         backward_passes_per_step=2)
    for _ in range(3):
        optimizer.zero_grad()
        with optimizer.no_sync():
            (weight * 10.0).sum().backward()
        for _ in range(2):
            (weight * float(1 + hvd.rank())).sum().backward()
        optimizer.synchronize()
        assert weight.grad.tolist() == [13.0] * 3, weight.grad
        with optimizer.skip_synchronize():
            optimizer.step()


@on_device
def a_cpu_model_against_a_gpu_model():
    """Said on all ranks, before anything is reduced."""
    weight = torch.nn.Parameter(torch.ones(3).to("cuda" if hvd.rank() else "cpu"))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
    error = raises(hvd.HorovodInternalError, lambda: (weight * 2).sum().backward())
    assert "[3] float32 on a GPU" in str(error), error
    optimizer.remove_comm_hooks()


@on_device
def one_warning_tells_of_the_slow_way():
    with mock.patch.object(_gpu, "_settled", None), \
            mock.patch.object(_gpu.gpu, "libraries", lambda: _gpu.gpu.Libraries(
                "none", 0, "", "", "libcuda.so.1 is not here")), \
            warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            assert hvd.allreduce(torch.ones(2).to("cuda"), op=hvd.Sum).tolist() == [2.0, 2.0]
    assert len([w for w in seen if "libcuda.so.1 is not here" in str(w.message)]) == 1


@on_device
def parts_of_the_check():
    """Those of python -m horovod.gpu_check that measure nothing and kill nobody."""
    device = torch.device("cuda", 0)
    for part in (worker.operations, worker.orders, worker.optimizer):
        assert part(device), part


@on_device
def cpu_against_gpu():
    """An error on all ranks names both; the job goes on."""
    for step in range(3):
        mine = torch.ones(4).to("cuda" if hvd.rank() else "cpu")
        for call in (hvd.allreduce, hvd.allgather):
            error = raises(hvd.HorovodInternalError, call, mine, name=f"mixed.{step}")
            assert "CPU" in str(error) and "GPU" in str(error), error
        assert hvd.allreduce(torch.ones(2).to("cuda"), op=hvd.Sum).tolist() == [2.0, 2.0]
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]


@on_device
def another_gpu_of_the_same_rank():
    assert hvd.allreduce(torch.ones(2).to("cuda:0"), op=hvd.Sum).tolist() == [2.0, 2.0]
    error = raises(ValueError, hvd.allreduce, torch.ones(2).to("cuda:1"))
    assert "torch.cuda.set_device" in str(error), error


EVERY = [one_call_a_bucket, kept_gradients_keep_their_values, hooks_on_several_streams,
         two_streams_and_all_operations, mixed_precision_and_skipped_steps,
         accumulated_and_silent_passes, a_cpu_model_against_a_gpu_model]
OF_THE_CORE = [cpu_against_gpu, another_gpu_of_the_same_rank]
