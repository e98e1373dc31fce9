"""Collectives on numpy arrays, without any framework.

    import numpy as np
    import horovod.numpy as hvd

    hvd.init()
    total = hvd.allreduce(np.ones(3), op=hvd.Sum)
"""
from typing import Any, List, Optional, Sequence

import numpy as np

from horovod import _core
from horovod.common import process_sets as _process_sets
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import (ProcessSet, add_process_set, global_process_set,
                                         remove_process_set)

_basics = HorovodBasics(__file__)
_process_sets._setup(_basics)

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
rank = _basics.rank
size = _basics.size
local_rank = _basics.local_rank
local_size = _basics.local_size
cross_rank = _basics.cross_rank
cross_size = _basics.cross_size
stats = _basics.stats
Average, Sum, Adasum, Min, Max, Product = range(6)

_ALLREDUCE, _ALLGATHER, _BROADCAST, _ALLTOALL, _REDUCESCATTER, _BARRIER, _JOIN = range(7)
_DTYPES = {np.dtype(name): code for code, name in enumerate(
    ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64",
     "bool"])}
_NAMES = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter"]


class _Capsule:
    """What numpy wants to see of a DLPack capsule."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple:
        return (1, 0)


def _array(capsule: Any, dtype: np.dtype) -> np.ndarray:
    array = np.from_dlpack(_Capsule(capsule))
    if dtype == np.bool_:
        array = array.view(np.bool_)
    return array if array.flags.writeable else array.copy()


def _submit(op: int, array: np.ndarray, output: Optional[np.ndarray], name: Optional[str],
            process_set: ProcessSet, reduce: int = Sum, root: int = -1,
            prescale: float = 1.0, postscale: float = 1.0,
            splits: Optional[Sequence[int]] = None) -> int:
    wire = None if name is None else f"{_NAMES[op]}.{name}"
    code = _DTYPES.get(array.dtype)
    problem = None
    if code is None:
        problem = f"arrays of {array.dtype} are not supported"
    set_id = process_set.process_set_id
    pointer = 0 if output is None else output.ctypes.data
    tensor = (wire, array.ctypes.data, pointer, code or 0, array.shape, splits)
    handle = _core.submit(op, reduce, set_id, root, prescale, postscale, [tensor], problem)
    if problem is not None:
        _core.orphan(handle, None)
        raise ValueError(problem)
    return handle


def _finish(handle: int, array: np.ndarray, output: Optional[np.ndarray]) -> tuple:
    try:
        _core.wait(handle)
        if output is not None:
            return output, None
        capsule, splits = _core.output(handle, 0, _DTYPES[array.dtype])
        return _array(capsule, array.dtype), splits
    except KeyboardInterrupt:
        _core.orphan(handle, (array, output))
        handle = 0
        raise
    finally:
        if handle:
            _core.release(handle)


def allreduce(array: Any, op: int = Average, name: Optional[str] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """A new array: the reduction of the arrays of all ranks, element by element."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    output = np.empty_like(array)
    handle = _submit(_ALLREDUCE, array, output, name, process_set, op, -1,
                     prescale_factor, postscale_factor)
    return _finish(handle, array, output)[0]


def allgather(array: Any, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """The arrays of all ranks one after the other, along the first dimension."""
    array = np.ascontiguousarray(array)
    return _finish(_submit(_ALLGATHER, array, None, name, process_set), array, None)[0]


def broadcast(array: Any, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> np.ndarray:
    """A new array: that of the root."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    output = np.empty_like(array)
    handle = _submit(_BROADCAST, array, output, name, process_set, Sum, root_rank)
    return _finish(handle, array, output)[0]


def alltoall(array: Any, splits: Optional[Sequence[int]] = None,
             name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> tuple:
    """(rows received from all ranks, how many from each)."""
    array = np.ascontiguousarray(array)
    if splits is not None and len(splits) != process_set.size():
        raise ValueError(f"{len(splits)} splits for {process_set.size()} ranks")
    handle = _submit(_ALLTOALL, array, None, name, process_set, splits=splits)
    output, received = _finish(handle, array, None)
    return output, np.array(received or [], dtype=np.int32)


def reducescatter(array: Any, op: int = Average, name: Optional[str] = None,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                  process_set: ProcessSet = global_process_set) -> np.ndarray:
    """This rank's share of the reduction, cut along the first dimension."""
    array = np.ascontiguousarray(array)
    handle = _submit(_REDUCESCATTER, array, None, name, process_set, op, -1,
                     prescale_factor, postscale_factor)
    return _finish(handle, array, None)[0]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every member has called it."""
    handle = _core.submit(_BARRIER, 0, process_set.process_set_id, -1, 1.0, 1.0,
                          [(None, 0, 0, 0, ())], None)
    try:
        _core.wait(handle)
    finally:
        _core.release(handle)


__all__: List[str] = [
    "init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size",
    "cross_rank", "cross_size", "stats", "Average", "Sum", "Adasum", "Min", "Max", "Product",
    "ProcessSet", "add_process_set", "remove_process_set", "global_process_set",
    "HorovodInternalError", "allreduce", "allgather", "broadcast", "alltoall",
    "reducescatter", "barrier"]
