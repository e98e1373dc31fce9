"""Tensors on their way to the core and back: checks, staging, handles.

The core takes dense, contiguous tensors in host memory as they are.  Other layouts are packed
here; those of GPUs go the ways of ``_gpu``.

The core borrows memory until the operation is done, so that memory must stay where it is.
A reference to a tensor does not do: ``resize_`` frees the memory under it, ``t.data = u`` and
``set_`` the storage.  ``hold`` keeps the storage and makes torch refuse to resize it, for good,
as ``Tensor.numpy()`` does.
"""
import itertools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from horovod import _core
from horovod.common import no_job
from horovod.common.advice import advised
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet

WORDS = _core.OPS
ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER, JOIN = range(len(WORDS))

# Older torch does not have all of them.
DTYPES: Dict[torch.dtype, int] = {getattr(torch, name): code
                                  for code, name in enumerate(_core.DTYPES) if hasattr(torch, name)}
_core.register_torch(DTYPES, torch.strided, torch.Tensor, torch.nn.Parameter,
                     getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))

_from_dlpack = getattr(torch._C, "_from_dlpack", None) or torch.utils.dlpack.from_dlpack


class Pending:
    """An operation under way: its native handle, what it borrows, and how to finish."""
    __slots__ = ("native", "borrowed", "finish")

    def __init__(self, native: int, borrowed: Any, finish: Callable[[int], Any]) -> None:
        self.native = native
        self.borrowed = borrowed
        self.finish = finish


handle_map: Dict[int, Pending] = {}
_numbers = itertools.count(1)
# (set, wire name) -> native handle of an announcement that this rank cannot take part.
problems: Dict[Tuple[int, str], int] = {}


def new_handle(pending: Pending) -> int:
    handle = next(_numbers)
    handle_map[handle] = pending
    return handle


def forget_handles() -> None:
    """After the job has gone: all handles are forgotten, numbers begin at 1 again."""
    global _numbers
    for pending in handle_map.values():
        _core.release(pending.native)
    handle_map.clear()
    problems.clear()
    _numbers = itertools.count(1)


def poll(handle: int) -> bool:
    """True once the operation is done, in success or failure; ``synchronize`` then does
    not block."""
    pending = handle_map.get(handle)
    if pending is None:
        raise ValueError(f"handle {handle} was not created or has been cleared")
    return _core.poll(pending.native)


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation and returns its output.

    Raises HorovodInternalError if the operation failed.  The handle is used up; a handle
    that is unknown gives None.
    """
    pending = handle_map.get(handle)
    if pending is None:
        return None
    try:
        _core.wait(pending.native)
        result = pending.finish(pending.native)
    except (HorovodInternalError, ValueError):
        drop(handle)
        raise
    drop(handle)
    return result


def drop(handle: int) -> None:
    pending = handle_map.pop(handle, None)
    if pending is not None:
        _core.release(pending.native)


# -- names and refusals -------------------------------------------------------------


def wire_names(op: int, name: Optional[str], count: int, grouped: bool) -> List[Optional[str]]:
    if name is None:
        return [None] * count
    if not grouped:
        return [f"{WORDS[op]}.{name}"]
    return [f"grouped_{WORDS[op]}.{name}_{i + 1}of{count}" for i in range(count)]


def refuse(op: int, name: Optional[str], process_set: ProcessSet, problem: str,
           count: int = 1, grouped: bool = False, error: Callable = ValueError) -> None:
    """Raises an argument error, after telling the other ranks, who would wait for ever."""
    set_id = process_set.process_set_id
    names, problem = wire_names(op, name, count, grouped), advised(problem)
    try:
        native = _core.submit(op, 1, set_id, 0, 1.0, 1.0,
                              [(n, 0, 0, 7, (1,), None) for n in names], problem)
    except (HorovodInternalError, ValueError):
        raise error(problem) from None
    _core.orphan(native, None)
    for wire in names:
        if wire is not None:
            problems[set_id, wire] = native
    raise error(problem)


def settle(op: int, name: Optional[str], process_set: ProcessSet, count: int = 1,
           grouped: bool = False) -> None:
    """Waits until an earlier refusal under one of these names is over."""
    for key, native in list(problems.items()):
        if _core.poll(native):
            del problems[key]
    for wire in wire_names(op, name, count, grouped):
        own = problems.pop((process_set.process_set_id, wire), None) if wire else None
        if own is not None:
            try:
                _core.wait(own)
            except (HorovodInternalError, ValueError):
                pass


def require_job() -> None:
    if not _core.is_initialized():
        raise HorovodInternalError(no_job.text())


# -- submission ---------------------------------------------------------------------


def _supported(tensor: torch.Tensor) -> Optional[str]:
    """None, or why the tensor cannot take part."""
    if not isinstance(tensor, torch.Tensor):
        return f"a torch tensor is needed, not {type(tensor).__name__}"
    if tensor.is_quantized or tensor.dtype not in DTYPES:
        return f"tensors of type {tensor.type()} ({tensor.dtype}) are not supported"
    if tensor.layout not in (torch.strided, getattr(torch, "_mkldnn", torch.strided)):
        return f"tensors of layout {tensor.layout} are not supported; see " \
               f"sparse_allreduce_async"
    if tensor.dim() > 16:
        return f"tensors of {tensor.dim()} dimensions are not supported"
    return None


def _has_numpy() -> bool:
    try:
        return torch.empty(0, device="cpu").numpy() is not None
    except RuntimeError:
        return False


CAN_HOLD = _has_numpy()


def hold(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor with the same storage, which cannot be resized any more."""
    storage = tensor.untyped_storage()
    if storage.resizable():
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()   # type: ignore
    return tensor.detach()


def stage(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a CPU tensor, dense and contiguous; itself if it is so."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    staged = tensor.contiguous().resolve_neg()
    if staged is not tensor:
        return staged                   # nobody else knows this memory
    return hold(staged) if CAN_HOLD else staged.clone()


def submit(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
           postscale: float, name: Optional[str], inputs: List[torch.Tensor],
           outputs: Optional[List[torch.Tensor]], splits: Optional[Sequence[int]] = None,
           grouped: bool = False) -> int:
    """The native handle.  inputs and outputs are dense, contiguous, in host memory."""
    if problems:
        settle(op, name, process_set, len(inputs), grouped)
    native = _core.submit_tensors(op, reduce, process_set.process_set_id, root, prescale,
                                  postscale, name, inputs, outputs, splits, grouped)
    assert native is not NotImplemented, "staged tensors are dense and contiguous"
    return native


def check(op: int, name: Optional[str], process_set: ProcessSet,
          tensors: Sequence[torch.Tensor], grouped: bool = False) -> None:
    """Refuses tensors that cannot take part."""
    require_job()
    for tensor in tensors:
        problem = _supported(tensor)
        if problem is not None:
            refuse(op, name, process_set, problem, len(tensors), grouped)
    if grouped and any(t.device != tensors[0].device for t in tensors):
        places = ", ".join(sorted({_place(t.device) for t in tensors}))
        refuse(op, name, process_set, f"the tensors of a grouped operation must all be on one "
               f"device; these are on {places}", len(tensors), grouped, HorovodInternalError)


def _place(device: torch.device) -> str:
    return "the CPU" if device.type == "cpu" else f"GPU {device.index}" \
        if device.type == "cuda" else str(device)


def in_place(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
             postscale: float, name: Optional[str], tensors: Sequence[torch.Tensor],
             grouped: bool = False) -> int:
    """Starts an operation whose results replace the tensors; the handle."""
    tensors = list(tensors)
    check(op, name, process_set, tensors, grouped)
    if not tensors[0].is_cpu:
        return _gpu().in_place(op, reduce, process_set, root, prescale, postscale, name,
                               tensors, grouped)
    staged = [stage(t) for t in tensors]
    native = submit(op, reduce, process_set, root, prescale, postscale, name, staged,
                    staged, grouped=grouped)
    return replacing(native, tensors, staged, grouped)


def replacing(native: int, tensors: List[torch.Tensor], results: List[torch.Tensor],
              grouped: bool) -> int:
    """The handle of an operation whose results go to where the tensors are then."""
    def finish(_: int) -> Any:
        for tensor, result in zip(tensors, results):
            if tensor.shape != result.shape:
                resized = list(tensor.shape)
                tensor.data = result    # a resize_ that failed leaves more rows than memory
                raise ValueError(advised(
                    f"a tensor was resized from {list(result.shape)} to {resized} while its "
                    f"operation was under way; call synchronize() first"))
            if result.data_ptr() != tensor.data_ptr():
                tensor.data.copy_(result)
        return tuple(tensors) if grouped else tensors[0]
    return new_handle(Pending(native, (tensors, results), finish))


def into_new(op: int, reduce: int, process_set: ProcessSet, root: int, prescale: float,
             postscale: float, name: Optional[str], tensors: Sequence[torch.Tensor],
             shapes: Optional[Sequence[Sequence[int]]] = None, grouped: bool = False) -> int:
    """Starts an operation into new tensors of known shapes, those of the inputs unless given;
    the handle."""
    tensors = list(tensors)
    shapes = [t.shape for t in tensors] if shapes is None else shapes
    if not tensors[0].is_cpu:
        return _gpu().into_new(op, reduce, process_set, root, prescale, postscale, name,
                               tensors, shapes, grouped)
    staged = [stage(t) for t in tensors]
    outputs = [torch.empty(shape, dtype=t.dtype, device="cpu")
               for t, shape in zip(tensors, shapes)]
    native = submit(op, reduce, process_set, root, prescale, postscale, name, staged,
                    outputs, grouped=grouped)

    def finish(_: int) -> Any:
        return tuple(outputs) if grouped else outputs[0]
    return new_handle(Pending(native, (tensors, staged, outputs), finish))


def take(native: int, index: int, like: torch.Tensor) -> Tuple[torch.Tensor, Any]:
    """An output the runtime has allocated, and the received splits if there are any."""
    capsule, splits = _core.output(native, index, DTYPES[like.dtype])
    tensor = _from_dlpack(capsule)
    if like.dtype is torch.bool:
        tensor = tensor.view(torch.bool)
    return tensor, splits


def taken(op: int, native: int, tensors: Sequence[torch.Tensor], grouped: bool,
          received_on: Optional[torch.device],
          put: Optional[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = None) -> Any:
    """What ``synchronize`` gives for outputs that the runtime has allocated; ``put`` brings
    each to where its input is."""
    outputs, splits = zip(*[take(native, i, t) for i, t in enumerate(tensors)])
    if put is not None:
        outputs = tuple(map(put, outputs, tensors))
    if op == ALLTOALL:
        received = torch.tensor(splits[0] or [], dtype=torch.int32, device=received_on or "cpu")
        return outputs[0], received
    return outputs if grouped else outputs[0]


def allocated(op: int, process_set: ProcessSet, name: Optional[str],
              tensors: Sequence[torch.Tensor], splits: Optional[Sequence[int]] = None,
              grouped: bool = False, received_on: Optional[torch.device] = None) -> int:
    """Starts an operation whose outputs the runtime allocates; the handle."""
    tensors = list(tensors)
    if not tensors[0].is_cpu:
        return _gpu().allocated(op, process_set, name, tensors, splits, grouped, received_on)
    staged = [stage(t) for t in tensors]
    native = submit(op, 1, process_set, -1, 1.0, 1.0, name, staged, None, splits, grouped)
    return new_handle(Pending(
        native, (tensors, staged),
        lambda done: taken(op, done, tensors, grouped, received_on)))


def _gpu() -> Any:
    """The module for tensors of GPUs; not even loaded before there is one."""
    from horovod.torch import _gpu as module
    return module
