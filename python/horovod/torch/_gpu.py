"""Tensors of GPUs on their way to the core and back.

There are two ways; the first tensor of a GPU settles which one this process goes.

Native  The core gets addresses of device memory, the device, and the stream that is current
        here and now; it lets its own stream wait for that one, not the caller.
        ``synchronize`` makes the stream that is current in its thread wait for the end.
Host    The core can use no CUDA library.  The values are copied to host memory on the stream
        that is current here, and the call waits for that; then they go the way of CPU
        tensors.  ``synchronize`` copies the results back on the stream current in its thread.

Accelerators that are not CUDA's go through the host as well.

Rules
1. The stream is asked for at each call, in the calling thread: backward has others.
2. Nothing here is called, and nothing of CUDA, before the first tensor of a GPU.
3. The handle keeps what the core borrows until the operation is done.  The stream that
   follows it is recorded for that memory, so that the allocator does not give it away before.
4. A stream under capture cannot be waited for from outside: ValueError, on all ranks.
"""
import warnings
from typing import Any, List, Optional, Sequence, Union

import torch

from horovod import _core
from horovod.common import gpu
from horovod.common.process_sets import ProcessSet
from horovod.torch import _submit


NOWHERE = 64            # the address of a tensor without elements; torch says 0


class Native:
    """The core has the device memory itself."""

    @staticmethod
    def bring(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        """The values, dense and contiguous, where the core takes them."""
        return [_dense(t) for t in tensors]

    @staticmethod
    def room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return like.detach().new_empty(shape)

    @staticmethod
    def submit(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
               postscale: float, name: Optional[str], inputs: List[torch.Tensor],
               outputs: Optional[List[torch.Tensor]], splits: Optional[Sequence[int]],
               grouped: bool) -> int:
        if _submit.problems:
            _submit.settle(op, name, process_set, len(inputs), grouped)
        device = inputs[0].device
        names = _submit.wire_names(op, name, len(inputs), grouped)
        places = [0] * len(inputs) if outputs is None else [o.data_ptr() for o in outputs]
        tensors = [(n, i.data_ptr() or NOWHERE, place, _submit.DTYPES[i.dtype], tuple(i.shape),
                    splits) for n, i, place in zip(names, inputs, places)]
        return _core.submit_device(op, reduce, process_set.process_set_id, root, prescale,
                                   postscale, tensors, None, device.index,
                                   stream_of(device).cuda_stream)

    @staticmethod
    def end(native: int, borrowed: Sequence[torch.Tensor]) -> None:
        """The operation is done: what follows on the current stream may use its results."""
        stream = stream_of(borrowed[0].device)
        _core.stream_wait(native, stream.cuda_stream)
        for tensor in borrowed:
            tensor.record_stream(stream)


class Host:
    """The core gets copies in host memory."""

    @staticmethod
    def bring(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        staged = [Host.room(t, t.shape).copy_(_dense(t), non_blocking=True) for t in tensors]
        stream_of(tensors[0].device).synchronize()
        return staged

    @staticmethod
    def room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        try:
            return torch.empty(shape, dtype=like.dtype, device="cpu", pin_memory=True)
        except RuntimeError:                # more than may be locked
            return torch.empty(shape, dtype=like.dtype, device="cpu")

    @staticmethod
    def submit(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
               postscale: float, name: Optional[str], inputs: List[torch.Tensor],
               outputs: Optional[List[torch.Tensor]], splits: Optional[Sequence[int]],
               grouped: bool) -> int:
        return _submit.submit(op, reduce, process_set, root, prescale, postscale, name,
                              inputs, outputs, splits, grouped)

    @staticmethod
    def end(native: int, borrowed: Sequence[torch.Tensor]) -> None:
        pass


class Foreign(Host):
    """An accelerator of another kind, by torch's blocking copies."""

    @staticmethod
    def bring(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
        return [_dense(t).cpu() for t in tensors]

    @staticmethod
    def room(like: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
        return torch.empty(shape, dtype=like.dtype, device="cpu")


Way = Union[Native, Host]
_settled: Optional[Way] = None


def way(device: torch.device) -> Way:
    """The way of this process."""
    global _settled
    if device.type != "cuda":
        return Foreign()
    if _settled is None:
        found = gpu.libraries()
        _settled = Host() if found.backend == "none" else Native()
        if found.backend == "none":
            warnings.warn(f"tensors of GPUs are copied through host memory, which is slow: "
                          f"{found.reason}; python -m horovod.gpu_check says more")
    return _settled


def stream_of(device: torch.device) -> Any:
    """The stream that is current in this thread.  Tests without a GPU replace torch.cuda."""
    return torch.cuda.current_stream(device)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().resolve_neg()


def _back(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The result where the input is; copied on the current stream if need be."""
    if result.device == like.device:
        return result
    return like.detach().new_empty(result.shape).copy_(result, non_blocking=True)


def refuse_capture(op: int, name: Optional[str], process_set: ProcessSet,
                   tensors: Sequence[torch.Tensor], grouped: bool) -> None:
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        _submit.refuse(op, name, process_set, "the current stream is being captured into a "
                       "CUDA graph; collectives cannot be part of a graph: end the capture "
                       "first", len(tensors), grouped)


def in_place(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
             postscale: float, name: Optional[str], tensors: List[torch.Tensor],
             grouped: bool) -> int:
    """Starts an operation whose results replace the tensors; the handle."""
    refuse_capture(op, name, process_set, tensors, grouped)
    taken = way(tensors[0].device)
    staged = taken.bring(tensors)
    native = taken.submit(op, reduce, process_set, root, prescale, postscale, name, staged,
                          staged, None, grouped)

    def finish(done: int) -> Any:
        taken.end(done, tensors + staged)
        for tensor, result in zip(tensors, staged):
            if result.device != tensor.device or result.data_ptr() != tensor.data_ptr():
                tensor.data.copy_(result, non_blocking=True)
        return tuple(tensors) if grouped else tensors[0]
    return _submit.new_handle(_submit.Pending(native, (tensors, staged), finish))


def into_new(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
             postscale: float, name: Optional[str], tensors: List[torch.Tensor],
             shapes: Sequence[Sequence[int]], grouped: bool) -> int:
    """Starts an operation into new tensors of known shape; the handle."""
    refuse_capture(op, name, process_set, tensors, grouped)
    taken = way(tensors[0].device)
    staged = taken.bring(tensors)
    outputs = [taken.room(t, shape) for t, shape in zip(tensors, shapes)]
    native = taken.submit(op, reduce, process_set, root, prescale, postscale, name, staged,
                          outputs, None, grouped)

    def finish(done: int) -> Any:
        taken.end(done, tensors + staged + outputs)
        results = [_back(o, t) for o, t in zip(outputs, tensors)]
        return tuple(results) if grouped else results[0]
    return _submit.new_handle(_submit.Pending(native, (tensors, staged, outputs), finish))


def allocated(op: int, process_set: ProcessSet, name: Optional[str],
              tensors: List[torch.Tensor], splits: Optional[Sequence[int]],
              grouped: bool, received_on: Optional[torch.device]) -> int:
    """Starts an operation whose outputs the core allocates; the handle."""
    refuse_capture(op, name, process_set, tensors, grouped)
    taken = way(tensors[0].device)
    staged = taken.bring(tensors)
    native = taken.submit(op, 1, process_set, -1, 1.0, 1.0, name, staged, None, splits,
                          grouped)

    def finish(done: int) -> Any:
        taken.end(done, tensors + staged)
        return _submit.taken(op, done, tensors, grouped, received_on, _back)
    return _submit.new_handle(_submit.Pending(native, (tensors, staged), finish))
