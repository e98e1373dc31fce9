"""State of rank 0 for everybody: parameters, optimizer state, Python objects."""
import collections
import hashlib
import io
from typing import Any, Counter, List, Optional, Sequence, Tuple

import cloudpickle
import torch

from horovod.common.advice import advised
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set

from horovod.torch import _copies
from horovod.torch.mpi_ops import (Max, allgather, allreduce, broadcast_, broadcast_async_,
                                   rank, synchronize)


def broadcast_parameters(params: Any, root_rank: int,
                         process_set: ProcessSet = global_process_set) -> None:
    """Makes the parameters of ``root_rank`` those of all ranks, in place.

    ``params`` is a ``state_dict()``, or a list of tensors or (name, tensor) pairs.

        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    _copies.settle()
    named = [(name, t) for name, t in _named_tensors(params) if isinstance(t, torch.Tensor)]
    compare([described(*pair) for pair in named], "broadcast_parameters", process_set)
    _finish([broadcast_async_(t, root_rank, name, process_set) for name, t in named])


def _named_tensors(params: Any) -> List[Tuple[Optional[str], Any]]:
    if isinstance(params, dict):
        return sorted(params.items())
    if isinstance(params, list):
        return [p if isinstance(p, tuple) else (None, p) for p in params]
    raise ValueError(f"invalid params of type {type(params)}: give a state_dict() or a list")


def _finish(handles: List[int]) -> None:
    """Waits for all, also when one fails; the first error is raised."""
    error: Optional[BaseException] = None
    for handle in handles:
        try:
            synchronize(handle)
        except (RuntimeError, ValueError) as e:
            error = error or e
    if error is not None:
        raise error


# -- the same on all ranks ----------------------------------------------------------


def described(name: Optional[str], tensor: torch.Tensor, layout: str = "") -> str:
    return (f"{name or 'a tensor'} {list(tensor.shape)} "
            f"{str(tensor.dtype).rpartition('.')[2]}{layout}")


def on_device(tensor: torch.Tensor) -> str:
    """For descriptions; GPUs of different numbers are alike."""
    return "" if tensor.is_cpu else f" on a {'GPU' if tensor.is_cuda else tensor.device.type}"


def digest(texts: Sequence[Any]) -> int:
    """60 bits."""
    return int(hashlib.sha256("\n".join(map(str, texts)).encode()).hexdigest()[:15], 16)


def compare(mine: List[str], what: str, process_set: ProcessSet) -> None:
    """Raises on all ranks, naming the first difference, if they have different texts.  What
    only some of them have would be waited for otherwise."""
    number = digest(mine)
    both = torch.tensor([number, -number], dtype=torch.int64, device="cpu")
    high, low = allreduce(both, name=what, op=Max, process_set=process_set).tolist()
    if high != -low:
        raise_difference(mine, what, process_set)


def raise_difference(mine: List[str], what: str, process_set: ProcessSet) -> None:
    """For texts that differ, as all ranks know."""
    (first, theirs), *others = allgather_object((rank(), mine), f"{what}.difference",
                                                process_set)
    other, texts = next(pair for pair in others if pair[1] != theirs)
    at = next((i for i, (a, b) in enumerate(zip(theirs, texts)) if a != b),
              min(len(theirs), len(texts)))
    a, b = [t[at] if at < len(t) else f"nothing (it has {len(t)})" for t in (theirs, texts)]
    error = HorovodInternalError(advised(
        f"{what}: the ranks have different parameters: where rank "
        f"{first} has {a}, rank {other} has {b}"))
    error.status, error.rank = "MISMATCH", other
    raise error


# -- objects ------------------------------------------------------------------------


def _pickled(obj: Any) -> torch.Tensor:
    buffer = io.BytesIO()
    cloudpickle.dump(obj, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def _unpickled(data: torch.Tensor) -> Any:
    """The sender is a rank of this job, which has proved the job key."""
    return cloudpickle.loads(data.numpy().tobytes())


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``, pickled and sent to all ranks.

    The root gets its own object back.
    """
    name = "broadcast_object" if name is None else name
    if rank() == root_rank:
        data = _pickled(obj)
        length = torch.tensor([data.numel()], dtype=torch.int64, device="cpu")
        broadcast_(length, root_rank, f"{name}.sz", process_set)
        broadcast_(data, root_rank, f"{name}.t", process_set)
        return obj
    length = torch.zeros(1, dtype=torch.int64, device="cpu")
    broadcast_(length, root_rank, f"{name}.sz", process_set)
    data = torch.empty(int(length.item()), dtype=torch.uint8, device="cpu")
    broadcast_(data, root_rank, f"{name}.t", process_set)
    return _unpickled(data)


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in the order of ranks."""
    name = "allgather_object" if name is None else name
    data = _pickled(obj)
    length = torch.tensor([data.numel()], dtype=torch.int64, device="cpu")
    lengths = allgather(length, f"{name}.sz", process_set).tolist()
    everything = allgather(data, f"{name}.t", process_set)
    return [_unpickled(part) for part in everything.split(lengths)]


# -- optimizer state ----------------------------------------------------------------


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int,
                              model: Optional[torch.nn.Module] = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """Makes state and options of the optimizer of ``root_rank`` those of all ranks.

    Weights and step counters do not move.  Ranks whose optimizer has no state yet (only
    the root has loaded a checkpoint) get the root's.  Afterwards every trainable
    parameter without gradient has one of zeros.  ``model`` is accepted for scripts that
    pass it.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(advised("cannot broadcast torch.optim.LBFGS state"))
    _copies.settle()
    fresh = not optimizer.state
    _broadcast_state(optimizer, root_rank, process_set)
    if fresh:
        zero_missing_gradients(optimizer)


def zero_missing_gradients(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)


def _broadcast_state(optimizer: torch.optim.Optimizer, root_rank: int,
                     process_set: ProcessSet) -> None:
    """One object with the shape of everything, then the tensors in place.

    State created by the root travels as it is; nobody steps the optimizer to make some.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    plan = _describe(optimizer, params) if rank() == root_rank else None
    groups, entries = broadcast_object(plan, root_rank, "optimizer_state", process_set)
    for group, options in zip(optimizer.param_groups, groups):
        group.update(options)
    if rank() != root_rank:
        _prepare(optimizer, params, entries)
    handles: List[int] = []
    seen: Counter[str] = collections.Counter()
    for index, values in entries:
        for key, (kind, _) in values.items():
            if kind != "tensor":
                continue
            name = f"{key}.{seen[key]}"
            seen[key] += 1
            handles.append(broadcast_async_(optimizer.state[params[index]][key], root_rank,
                                            name, process_set))
    _finish(handles)


def _describe(optimizer: torch.optim.Optimizer, params: List[Any]) -> tuple:
    """(options of each group, state of each parameter: tensors by shape, dtype, device)."""
    groups = [{k: v for k, v in group.items() if k != "params"}
              for group in optimizer.param_groups]
    numbers = {id(p): i for i, p in enumerate(params)}
    entries = []
    for p, values in optimizer.state.items():
        if id(p) not in numbers:
            continue
        described = {}
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.layout is torch.strided:
                described[key] = ("tensor", (tuple(value.shape), value.dtype,
                                             value.device.type, value.stride()))
            else:
                described[key] = ("value", value)
        entries.append((numbers[id(p)], described))
    return groups, sorted(entries, key=lambda e: e[0])


def _prepare(optimizer: torch.optim.Optimizer, params: List[Any], entries: list) -> None:
    """Gives the optimizer state of the described form; what fits already is kept."""
    wanted = {id(params[index]) for index, _ in entries}
    for p in [p for p in optimizer.state if id(p) not in wanted]:
        del optimizer.state[p]
    for index, described in entries:
        p = params[index]
        state = optimizer.state[p]
        for key in [k for k in state if k not in described]:
            del state[key]
        for key, (kind, value) in described.items():
            if kind == "value":
                state[key] = value
                continue
            shape, dtype, device_type, stride = value
            old = state.get(key)
            if isinstance(old, torch.Tensor) and tuple(old.shape) == shape and \
                    old.dtype == dtype and old.device.type == device_type:
                continue
            device = p.device if device_type == p.device.type else device_type
            state[key] = torch.empty_strided(shape, stride, dtype=dtype, device=device)
