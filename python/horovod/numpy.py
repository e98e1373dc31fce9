"""Collectives on numpy arrays, without any framework.

    import numpy as np
    import horovod.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)

Names that end in ``_`` write into the array they are given; names with ``_async`` return a handle
for ``synchronize``; ``grouped_`` ones take a list, which is reduced as a whole.  An array that is
in flight must not be changed.
"""
import dataclasses
from typing import Any, Dict, List, Optional, Sequence, Tuple

from horovod.common.needs import need

need("numpy", "numpy", "numpy", "numpy")

import cloudpickle
import numpy as np

from horovod import _core
from horovod.common import delegates as _delegates
from horovod.common.delegates import (Adasum, Average, Max, Min, Product, Sum, abort, cross_rank,
                                      cross_size, init, is_homogeneous, is_initialized,
                                      local_rank, local_size, rank, size, start_timeline, stats,
                                      stop_timeline)
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import (ProcessSet, add_process_set, global_process_set,
                                         remove_process_set)

_ALLREDUCE, _ALLGATHER, _BROADCAST, _ALLTOALL, _REDUCESCATTER, _BARRIER, _JOIN = range(
    len(_core.OPS))
_DTYPES = {name: code for code, name in enumerate(_core.DTYPES)}    # bfloat16 is ml_dtypes'
_SHOWN_AS = {"bool": "uint8", "bfloat16": "uint16"}     # what numpy takes through DLPack


def shutdown() -> None:
    """Leaves the job.  Operations that are under way fail, here and on the others."""
    _delegates.shutdown()
    _pending.clear()
    _refused.clear()


# -- one way for all operations -----------------------------------------------------------


@dataclasses.dataclass
class _Operation:
    """What an operation under way borrows, and what becomes of it."""
    op: int
    inputs: List[np.ndarray]
    outputs: Optional[List[np.ndarray]]     # None: made by the core
    targets: Optional[List[np.ndarray]]     # in place, where the output is a copy of it
    is_group: bool


_pending: Dict[int, _Operation] = {}        # by handle
_refused: Dict[tuple, int] = {}             # (set, wire name): what this rank cannot take part in


class _Capsule:
    """What numpy wants to see of a DLPack capsule."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple:
        return (1, 0)


def _contiguous(array: Any) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(np.shape(array))


def _rows(array: Any) -> np.ndarray:
    """A scalar counts as one row."""
    return np.ascontiguousarray(array)


def _problem(arrays: Sequence[np.ndarray]) -> Optional[str]:
    for array in arrays:
        if array.dtype.name not in _DTYPES or not array.dtype.isnative:
            return f"arrays of {array.dtype} are not supported; use one of {', '.join(_DTYPES)}"
    return None


def _start(operation: _Operation, name: Optional[str], process_set: ProcessSet,
           reduce: int = Sum, root: int = -1, prescale: float = 1.0, postscale: float = 1.0,
           splits: Optional[Sequence[int]] = None, problem: Optional[str] = None) -> int:
    """A handle.  Others learn of a problem of this rank by the error they get."""
    problem = problem or _problem(operation.inputs)
    wires, tensors = _wire_names(operation, name), []
    set_id = process_set.process_set_id
    _settle([(set_id, wire) for wire in wires])
    for i, (wire, array) in enumerate(zip(wires, operation.inputs)):
        output = operation.outputs[i].ctypes.data if operation.outputs is not None else 0
        tensors.append((wire, array.ctypes.data, output, _DTYPES.get(array.dtype.name, 0),
                        array.shape, splits))
    try:
        handle = _core.submit(operation.op, reduce, set_id, root, prescale, postscale, tensors,
                              problem)
    except HorovodInternalError:
        if problem is None:
            raise
        raise ValueError(problem) from None
    if problem is not None:
        _core.orphan(handle, None)
        _refused.update({(set_id, wire): handle for wire in wires if wire is not None})
        raise ValueError(problem)
    _pending[handle] = operation
    return handle


def _wire_names(operation: _Operation, name: Optional[str]) -> List[Optional[str]]:
    kind, count = _core.OPS[operation.op], len(operation.inputs)
    if name is None:
        return [None] * count
    if not operation.is_group:
        return [f"{kind}.{name}"]
    return [f"grouped_{kind}.{name}_{i + 1}of{count}" for i in range(count)]


def _settle(names: Sequence[tuple]) -> None:
    """Waits until an earlier refusal under one of these names is over."""
    for handle in {_refused.pop(key) for key in names if key in _refused}:
        try:
            _core.wait(handle)
        except (HorovodInternalError, ValueError):
            pass


def _made(handle: int, index: int, dtype: np.dtype) -> Tuple[np.ndarray, Any]:
    """An array that the core has made, and the rows that came from each rank."""
    shown = _SHOWN_AS.get(dtype.name, dtype.name)
    capsule, received = _core.output(handle, index, _DTYPES[shown])
    array = np.from_dlpack(_Capsule(capsule)).view(dtype)
    return array if array.flags.writeable else array.copy(), received


def _collect(handle: int, operation: _Operation) -> Any:
    if operation.outputs is None:
        made = [_made(handle, i, x.dtype) for i, x in enumerate(operation.inputs)]
        if operation.op == _ALLTOALL:
            return made[0][0], np.array(made[0][1] or [], dtype=np.int32)
        results = [array for array, _ in made]
    else:
        results = operation.outputs
    if operation.targets is not None:
        for target, result in zip(operation.targets, results):
            if target.ctypes.data != result.ctypes.data:
                target[...] = result
        results = operation.targets
    return results if operation.is_group else results[0]


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation; its result, or the error it failed with."""
    operation = _pending.pop(handle, None)
    if operation is None:
        raise ValueError(f"{handle} is no handle of an operation that is under way")
    try:
        _core.wait(handle)
        return _collect(handle, operation)
    except KeyboardInterrupt:
        _core.orphan(handle, operation)
        handle = 0
        raise
    finally:
        if handle:
            _core.release(handle)


def poll(handle: int) -> bool:
    """Whether ``synchronize`` would return at once."""
    if handle not in _pending:
        raise ValueError(f"{handle} is no handle of an operation that is under way")
    return _core.poll(handle)


def _targets(arrays: Sequence[Any]) -> List[np.ndarray]:
    for array in arrays:
        if not isinstance(array, np.ndarray) or not array.flags.writeable:
            raise ValueError("an operation in place needs an array that can be written to")
    return list(arrays)


def _some(arrays: Any) -> List[Any]:
    arrays = list(arrays)
    if not arrays:
        raise ValueError("a group needs one array at least")
    return arrays


# -- allreduce ------------------------------------------------------------------------------


def _allreduce(arrays: Sequence[Any], in_place: bool, is_group: bool, name: Optional[str],
               process_set: ProcessSet, op: int, prescale: float, postscale: float) -> int:
    targets = _targets(arrays) if in_place else None
    inputs = [_contiguous(array) for array in arrays]
    outputs = inputs if in_place else [np.empty_like(array) for array in inputs]
    return _start(_Operation(_ALLREDUCE, inputs, outputs, targets, is_group), name, process_set,
                  op, -1, prescale, postscale)


def allreduce(array: Any, op: int = Average, name: Optional[str] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """A new array: the reduction of the arrays of all ranks, element by element."""
    return synchronize(allreduce_async(array, op, name, prescale_factor, postscale_factor,
                                       process_set))


def allreduce_async(array: Any, op: int = Average, name: Optional[str] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """As ``allreduce``, without waiting: a handle."""
    return _allreduce([array], False, False, name, process_set, op, prescale_factor,
                      postscale_factor)


def allreduce_(array: np.ndarray, op: int = Average, name: Optional[str] = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> np.ndarray:
    """As ``allreduce``, into ``array`` itself."""
    return synchronize(allreduce_async_(array, op, name, prescale_factor, postscale_factor,
                                        process_set))


def allreduce_async_(array: np.ndarray, op: int = Average, name: Optional[str] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """As ``allreduce_``, without waiting: a handle."""
    return _allreduce([array], True, False, name, process_set, op, prescale_factor,
                      postscale_factor)


def grouped_allreduce(arrays: Sequence[Any], op: int = Average, name: Optional[str] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> List[np.ndarray]:
    """A list of new arrays, reduced together."""
    return synchronize(grouped_allreduce_async(arrays, op, name, prescale_factor,
                                               postscale_factor, process_set))


def grouped_allreduce_async(arrays: Sequence[Any], op: int = Average,
                            name: Optional[str] = None, prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """As ``grouped_allreduce``, without waiting: a handle."""
    return _allreduce(_some(arrays), False, True, name, process_set, op, prescale_factor,
                      postscale_factor)


def grouped_allreduce_(arrays: Sequence[np.ndarray], op: int = Average,
                       name: Optional[str] = None, prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> List[np.ndarray]:
    """As ``grouped_allreduce``, into the arrays themselves."""
    return synchronize(grouped_allreduce_async_(arrays, op, name, prescale_factor,
                                                postscale_factor, process_set))


def grouped_allreduce_async_(arrays: Sequence[np.ndarray], op: int = Average,
                             name: Optional[str] = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """As ``grouped_allreduce_``, without waiting: a handle."""
    return _allreduce(_some(arrays), True, True, name, process_set, op, prescale_factor,
                      postscale_factor)


# -- allgather ------------------------------------------------------------------------------


def allgather(array: Any, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """The arrays of all ranks one after the other, along the first dimension, in which they may
    differ."""
    return synchronize(allgather_async(array, name, process_set))


def allgather_async(array: Any, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """As ``allgather``, without waiting: a handle."""
    return _start(_Operation(_ALLGATHER, [_rows(array)], None, None, False), name, process_set)


def grouped_allgather(arrays: Sequence[Any], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[np.ndarray]:
    """A list: each array gathered as ``allgather`` does."""
    return synchronize(grouped_allgather_async(arrays, name, process_set))


def grouped_allgather_async(arrays: Sequence[Any], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """As ``grouped_allgather``, without waiting: a handle."""
    inputs = [_rows(array) for array in _some(arrays)]
    return _start(_Operation(_ALLGATHER, inputs, None, None, True), name, process_set)


# -- broadcast ------------------------------------------------------------------------------


def _broadcast(array: Any, in_place: bool, root_rank: int, name: Optional[str],
               process_set: ProcessSet) -> int:
    targets = _targets([array]) if in_place else None
    source = _contiguous(array)
    output = source if in_place else np.empty_like(source)
    return _start(_Operation(_BROADCAST, [source], [output], targets, False), name, process_set,
                  Sum, root_rank)


def broadcast(array: Any, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """A new array: that of the root, which is a rank of the job."""
    return synchronize(broadcast_async(array, root_rank, name, process_set))


def broadcast_async(array: Any, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """As ``broadcast``, without waiting: a handle."""
    return _broadcast(array, False, root_rank, name, process_set)


def broadcast_(array: np.ndarray, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> np.ndarray:
    """As ``broadcast``, into ``array`` itself."""
    return synchronize(broadcast_async_(array, root_rank, name, process_set))


def broadcast_async_(array: np.ndarray, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """As ``broadcast_``, without waiting: a handle."""
    return _broadcast(array, True, root_rank, name, process_set)


# -- alltoall, reducescatter ------------------------------------------------------------------


def alltoall(array: Any, splits: Optional[Sequence[int]] = None,
             name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> tuple:
    """(rows received from all ranks, how many from each).  ``splits``: how many rows go to each
    rank; without it all get equally many."""
    return synchronize(alltoall_async(array, splits, name, process_set))


def alltoall_async(array: Any, splits: Optional[Sequence[int]] = None,
                   name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """As ``alltoall``, without waiting: a handle."""
    array, problem = _rows(array), None
    if splits is not None:
        splits = [int(n) for n in splits]
        if len(splits) != process_set.size():
            problem = f"{len(splits)} splits for {process_set.size()} ranks"
        elif min(splits) < 0 or sum(splits) != len(array):
            problem = f"the splits {splits} do not add up to {len(array)} rows"
    return _start(_Operation(_ALLTOALL, [array], None, None, False), name, process_set,
                  splits=None if problem else splits, problem=problem)


def _reducescatter(arrays: Sequence[Any], is_group: bool, name: Optional[str],
                   process_set: ProcessSet, op: int, prescale: float, postscale: float) -> int:
    operation = _Operation(_REDUCESCATTER, [_rows(array) for array in arrays], None, None,
                           is_group)
    return _start(operation, name, process_set, op, -1, prescale, postscale)


def reducescatter(array: Any, op: int = Average, name: Optional[str] = None,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                  process_set: ProcessSet = global_process_set) -> np.ndarray:
    """This rank's share of the reduction, cut along the first dimension."""
    return synchronize(reducescatter_async(array, op, name, prescale_factor, postscale_factor,
                                           process_set))


def reducescatter_async(array: Any, op: int = Average, name: Optional[str] = None,
                        prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                        process_set: ProcessSet = global_process_set) -> int:
    """As ``reducescatter``, without waiting: a handle."""
    return _reducescatter([array], False, name, process_set, op, prescale_factor,
                          postscale_factor)


def grouped_reducescatter(arrays: Sequence[Any], op: int = Average, name: Optional[str] = None,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                          process_set: ProcessSet = global_process_set) -> List[np.ndarray]:
    """A list: this rank's share of each array."""
    return synchronize(grouped_reducescatter_async(arrays, op, name, prescale_factor,
                                                   postscale_factor, process_set))


def grouped_reducescatter_async(arrays: Sequence[Any], op: int = Average,
                                name: Optional[str] = None, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0,
                                process_set: ProcessSet = global_process_set) -> int:
    """As ``grouped_reducescatter``, without waiting: a handle."""
    return _reducescatter(_some(arrays), True, name, process_set, op, prescale_factor,
                          postscale_factor)


# -- join and barrier -------------------------------------------------------------------------


def _run_alone(op: int, process_set: ProcessSet) -> int:
    """An operation without tensors; its value."""
    handle = _core.submit(op, Sum, process_set.process_set_id, -1, 1.0, 1.0,
                          [(None, 0, 0, 0, (), None)], None)
    try:
        _core.wait(handle)
        return _core.value(handle) if op == _JOIN else 0
    except KeyboardInterrupt:
        _core.orphan(handle, None)
        handle = 0
        raise
    finally:
        if handle:
            _core.release(handle)


def join(process_set: ProcessSet = global_process_set) -> int:
    """Tells that this rank has no more data, and waits until all ranks have told so.

    Meanwhile it takes part in the allreduces of the others with neutral elements (zeros for sums
    and averages).  The rank that joined last is returned, on all ranks.
    """
    return _run_alone(_JOIN, process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every member has called it."""
    _run_alone(_BARRIER, process_set)


# -- objects ----------------------------------------------------------------------------------


def _pickled(obj: Any) -> np.ndarray:
    return np.frombuffer(cloudpickle.dumps(obj), dtype=np.uint8)


def broadcast_object(obj: Any, root_rank: int = 0, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``, pickled and sent to all ranks.  The root gets its own back."""
    name = "broadcast_object" if name is None else name
    is_root = rank() == root_rank
    data = _pickled(obj) if is_root else np.empty(0, np.uint8)
    length = broadcast(np.array([len(data)]), root_rank, f"{name}.sz", process_set)
    data = broadcast(data if is_root else np.empty(length[0], np.uint8), root_rank, f"{name}.t",
                     process_set)
    # The sender is a rank of this job, which has proved the job key.
    return obj if is_root else cloudpickle.loads(data.tobytes())


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in the order of ranks."""
    name = "allgather_object" if name is None else name
    data = _pickled(obj)
    lengths = allgather(np.array([len(data)]), f"{name}.sz", process_set)
    everything = allgather(data, f"{name}.t", process_set)
    parts = np.split(everything, np.cumsum(lengths)[:-1])
    return [cloudpickle.loads(part.tobytes()) for part in parts]


__all__ = [
    "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size",
    "cross_rank", "cross_size", "is_homogeneous", "abort", "stats", "start_timeline",
    "stop_timeline", "Average", "Sum", "Adasum", "Min", "Max", "Product",
    "ProcessSet", "add_process_set", "remove_process_set", "global_process_set",
    "HorovodInternalError", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_",
    "grouped_allreduce", "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "allgather", "allgather_async", "grouped_allgather",
    "grouped_allgather_async", "broadcast", "broadcast_", "broadcast_async", "broadcast_async_",
    "alltoall", "alltoall_async", "reducescatter", "reducescatter_async",
    "grouped_reducescatter", "grouped_reducescatter_async", "join", "barrier", "synchronize",
    "poll", "broadcast_object", "allgather_object"]
