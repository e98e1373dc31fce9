"""Tensors of a device handed over to the core: streams, threads, memory, refusals.

The core is a small one here (``Core``): a job of one rank whose operations copy their input on a
stream of its own, and whose handles are done when the work is queued.  Whatever the Python layer
forgets to order, the seeds of streams.Late bring into the wrong order.
"""
import contextlib
import ctypes
import os
import subprocess
import sys
import threading
import warnings
from unittest import mock

import pytest
import torch

import horovod.torch as hvd
from gpu import device as devices
from gpu.streams import Late
from horovod import _core
from horovod.common import gpu
from horovod.torch import _gpu, _submit

SEEDS = range(20)


class Core:
    """submit_device, stream_wait and what goes with them."""

    def __init__(self, device):
        self.device, self.streams = device, device.streams
        self.calls, self.own, self.kept, self.refused = [], {}, {}, []

    def submit_device(self, op, reduce, process_set, root, prescale, postscale, tensors, problem,
                      device, stream):
        own = self.own.setdefault(device, self.streams.stream(device))
        self.streams.order(own, stream)
        handle, self.kept[len(self.calls) + 1] = len(self.calls) + 1, []
        for _, source, to, dtype, shape, _ in tensors:
            nbytes = torch.Size(shape).numel() * _submit_dtypes[dtype].itemsize
            scratch = ctypes.create_string_buffer(max(1, nbytes))
            to = to or self.streams.alloc(device, nbytes)
            self.streams.read(own, ctypes.addressof(scratch), source, nbytes)
            self.streams.write(own, to, ctypes.addressof(scratch), nbytes)
            self.kept[handle].append((scratch, to, shape, dtype, device))
        self.calls.append((threading.get_ident(), device, stream, tensors))
        return handle

    def stream_wait(self, handle, stream):
        self.streams.order(stream, self.own[self.kept[handle][0][4]])

    def output(self, handle, index, dtype):
        return self.kept[handle][index], [len(self.kept)] if dtype is not None else None

    def from_dlpack(self, kept):
        _, address, shape, dtype, index = kept
        inner = torch.empty(shape, dtype=_submit_dtypes[dtype], device="cpu")
        memory = devices.Memory(index, inner.nbytes, address, owner=lambda: None)
        return devices.DeviceTensor(inner, memory)

    def submit(self, op, *rest):
        self.refused.append(rest[-1])
        return 0


_submit_dtypes = {code: dtype for dtype, code in _submit.DTYPES.items()}


@contextlib.contextmanager
def handed_over(seed=0):
    """(device, core) while all of it is installed."""
    device = devices.Device(Late(seed))
    core = Core(device)
    with contextlib.ExitStack() as stack:
        for name in ("submit_device", "stream_wait", "output", "submit"):
            stack.enter_context(mock.patch.object(_core, name, getattr(core, name), create=True))
        for name, value in {"is_initialized": True, "wait": True, "release": None,
                            "orphan": None, "poll": True}.items():
            stack.enter_context(mock.patch.object(_core, name, lambda *_, v=value: v))
        stack.enter_context(mock.patch.object(_submit, "_from_dlpack", core.from_dlpack))
        stack.enter_context(mock.patch.object(_gpu, "_settled", _gpu.Native()))
        yield stack.enter_context(device.installed()), core
        hvd.mpi_ops._submit.handle_map.clear()


def produced_and_used(seed):
    """Whether values that one stream makes arrive, by an operation, at another."""
    with handed_over(seed) as (_, core):
        producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
        first, second = torch.zeros(100, device="cuda"), torch.zeros(100, device="cuda")
        producer.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(producer):
            first.fill_(3.0)
            second.fill_(3.0)
            handles = [hvd.allreduce_async(first), hvd.allgather_async(first),
                       hvd.allreduce_async_(second)]
        del first, second
        with torch.cuda.stream(consumer):
            results = [hvd.synchronize(h) + 1 for h in handles]
            return all(bool((r.cpu() == 4.0).all()) for r in results)


def test_streams_are_ordered():
    assert all(produced_and_used(seed) for seed in SEEDS)


@pytest.mark.parametrize("broken", ["producer", "consumer"])
def test_a_missing_wait_is_noticed(broken):
    """The tests above would fail if the layer forgot one of the two orders."""
    def submit(self, *args):
        return original(self, *args[:-1], self.streams.stream(0))
    original = Core.submit_device
    patch = mock.patch.object(Core, "submit_device", submit) if broken == "producer" else \
        mock.patch.object(Core, "stream_wait", lambda *_: None)
    with patch:
        assert not all(produced_and_used(seed) for seed in SEEDS)


def test_the_stream_is_that_of_the_calling_thread():
    with handed_over() as (_, core):
        values, streams = torch.ones(4, device="cuda:1"), {}
        torch.cuda.current_stream("cuda:1").synchronize()

        def call(name):
            streams[name] = torch.cuda.Stream("cuda:1")
            with torch.cuda.stream(streams[name]):
                hvd.synchronize(hvd.allreduce_async_(values, name=name))
        threads = [threading.Thread(target=call, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
            thread.join()
        assert [c[1] for c in core.calls] == [1, 1]
        assert [c[2] for c in core.calls] == [streams[n].cuda_stream for n in "ab"]


def test_in_place_uses_the_memory_of_the_tensor():
    with handed_over() as (_, core):
        plain = torch.arange(6.0, device="cuda").view(2, 3)
        assert hvd.synchronize(hvd.allreduce_async_(plain)) is plain
        assert core.calls[-1][3][0][1:3] == (plain.data_ptr(), plain.data_ptr())
        turned = plain.t()
        assert hvd.synchronize(hvd.allreduce_async_(turned)) is turned
        assert core.calls[-1][3][0][1] != plain.data_ptr()
        assert torch.equal(turned.cpu(), torch.arange(6.0).view(2, 3).t())


def test_groups_lie_on_one_device():
    with handed_over() as (_, core):
        mixed = [torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")]
        for call in (hvd.grouped_allreduce, hvd.grouped_allreduce_, hvd.grouped_allgather,
                     hvd.grouped_reducescatter):
            with pytest.raises(hvd.HorovodInternalError, match="on GPU 0, GPU 1"):
                call(mixed, name="mixed")
        with pytest.raises(hvd.HorovodInternalError, match="on GPU 0, the CPU"):
            hvd.grouped_allreduce([mixed[0], torch.ones(2)])
        assert not core.calls and len(core.refused) == 5 and _submit.problems
    _submit.problems.clear()


def test_a_capture_is_refused():
    with handed_over() as (_, core):
        values = torch.ones(2, device="cuda")
        torch.cuda.current_stream().captures = True
        for call in (hvd.allreduce, hvd.allreduce_, hvd.allgather):
            with pytest.raises(ValueError, match="being captured into a CUDA graph"):
                call(values)
        assert not core.calls and len(core.refused) == 3


def test_received_splits_lie_where_the_splits_are():
    with handed_over(), mock.patch.object(hvd.ProcessSet, "size", lambda _: 1):
        values, splits = torch.arange(3, device="cuda"), torch.tensor([3], device="cuda")
        output, received = hvd.alltoall(values, splits)
        assert output.is_cuda and received.is_cuda and received.dtype == torch.int32
        _, received = hvd.alltoall(values, torch.tensor([3]))
        assert received.is_cpu


def test_without_cuda_libraries_one_warning_says_why(monkeypatch):
    none = gpu.Libraries("none", 0, "", "", "libcuda.so.1: not found")
    monkeypatch.setattr(_gpu, "_settled", None)
    monkeypatch.setattr(gpu, "libraries", lambda: none)
    with pytest.warns(UserWarning, match="libcuda.so.1: not found.*gpu_check"):
        assert isinstance(_gpu.way(torch.device("cuda", 0)), _gpu.Host)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(_gpu.way(torch.device("cuda", 0)), _gpu.Host)
        assert isinstance(_gpu.way(torch.device("mps")), _gpu.Foreign)


def test_where_pip_puts_the_libraries(tmp_path, monkeypatch):
    for part in ("nccl", "cuda_runtime", "cublas"):
        (tmp_path / "nvidia" / part / "lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [d for d in gpu.directories() if d.startswith(str(tmp_path))] == [
        str(tmp_path / "nvidia" / part / "lib") for part in ("nccl", "cuda_runtime")]


def test_a_job_of_the_cpu_knows_nothing_of_gpus():
    """Neither the module nor a library is loaded before the first tensor of a GPU."""
    script = """if True:
        import sys, torch, horovod.torch as hvd
        hvd.init()
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [1.0] * 3
        hvd.synchronize(hvd.allreduce_async_(torch.ones(3)))
        hvd.grouped_allgather([torch.ones(2), torch.ones(3)])
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps}
        assert not [f for f in files if "libnccl" in f or "libcuda" in f], files
        assert "horovod.torch._gpu" not in sys.modules and "horovod.common.gpu" not in sys.modules
        """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, env={
        k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")})
