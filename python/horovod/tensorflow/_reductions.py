"""allreduce and reducescatter as users call them: sparse tensors, compression, devices."""
from typing import Any, List, Optional, Sequence

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import (Adasum, Average, Max, Min, Product, Sum,
                                        handle_average_backwards_compatibility)


def device(name: str) -> Any:
    """``tf.device``, where '' means: where the input is."""
    return tf.device(name or None)


def check_sparse(op: int, prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> None:
    """IndexedSlices are gathered, which adds them up."""
    if op in (Adasum, Min, Max, Product):
        raise NotImplementedError("allreduce of IndexedSlices knows Sum and Average only; use "
                                  "sparse_as_dense, or tf.convert_to_tensor")
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("allreduce of IndexedSlices takes no scale factors; use "
                                  "sparse_as_dense, or tf.convert_to_tensor")


def _check_adasum(op: int, process_set: ProcessSet) -> None:
    if op == Adasum and process_set.process_set_id != 0:
        raise NotImplementedError("Adasum of a process set other than the global one")


def reduce_slices(slices: tf.IndexedSlices, op: int, process_set: ProcessSet,
                  name: Optional[str] = None, ignore_name_scope: bool = False,
                  wire: Optional[str] = None, pass_by: bool = False) -> tf.IndexedSlices:
    """All rows of all ranks, in one operation for values and indices."""
    wires = None if wire is None else [f"{wire}.values", f"{wire}.indices"]
    values, indices = mpi_ops._allgather([slices.values, slices.indices], name,
                                         ignore_name_scope, process_set, True, wires, pass_by)
    if op == Average:
        set_id = mpi_ops._id(process_set)
        ranks = mpi_ops.size_op(set_id)
        if pass_by:
            ranks = tf.maximum(ranks * mpi_ops.process_set_included_op(set_id), 1)
        values = values / tf.cast(ranks, values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def allreduce(tensor: Any, average: Optional[bool] = None, device_dense: str = "",
              device_sparse: str = "", compression: Any = Compression.none,
              op: Optional[int] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set,
              ignore_name_scope: bool = False) -> Any:
    """The reduction of the tensors of all ranks, element by element, as a new tensor.

    ``op`` is Average (the default), Sum, Min, Max, Product or Adasum; the inputs are
    multiplied by ``prescale_factor`` before and the result by ``postscale_factor`` after it.
    ``tf.IndexedSlices`` are gathered.  The gradient of an allreduce is an allreduce of the
    gradients.  ``average`` is deprecated.
    """
    op = handle_average_backwards_compatibility(op, average)
    _check_adasum(op, process_set)
    if isinstance(tensor, tf.IndexedSlices):
        check_sparse(op, prescale_factor, postscale_factor)
        with device(device_sparse):
            return reduce_slices(tensor, op, process_set, name, ignore_name_scope)
    with device(device_dense):
        compressed, ctx = compression.compress(_dense(tensor, compression))
        reduced = mpi_ops._allreduce(compressed, name, op, prescale_factor, postscale_factor,
                                     ignore_name_scope, process_set)
        return compression.decompress(reduced, ctx)


def _dense(tensor: Any, compression: Any) -> Any:
    """A tensor as it is, for the sake of its name; what compresses needs a real one."""
    return tensor if compression is Compression.none else tf.convert_to_tensor(tensor)


def grouped_allreduce(tensors: Sequence[Any], average: Optional[bool] = None,
                      device_dense: str = "", device_sparse: str = "",
                      compression: Any = Compression.none, op: Optional[int] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set,
                      ignore_name_scope: bool = False,
                      name: Optional[str] = None) -> List[Any]:
    """``allreduce`` of several tensors, of any types, as one operation."""
    op = handle_average_backwards_compatibility(op, average)
    _check_adasum(op, process_set)
    results = list(tensors)
    sparse = [i for i, t in enumerate(results) if isinstance(t, tf.IndexedSlices)]
    dense = [i for i in range(len(results)) if i not in sparse]
    if sparse:
        check_sparse(op, prescale_factor, postscale_factor)
    if dense:
        with device(device_dense):
            compressed, contexts = zip(*[compression.compress(_dense(results[i], compression))
                                         for i in dense])
            reduced = mpi_ops._grouped_allreduce(
                compressed, name, op, prescale_factor, postscale_factor, ignore_name_scope,
                process_set)
            for i, result, ctx in zip(dense, reduced, contexts):
                results[i] = compression.decompress(result, ctx)
    with device(device_sparse):
        for i in sparse:
            results[i] = reduce_slices(results[i], op, process_set,
                                       name and f"{name}_{i}", ignore_name_scope)
    return results


def _check_scatter(op: int) -> None:
    if op not in (Average, Sum):
        raise NotImplementedError("reducescatter knows Average and Sum only")


def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none,
                  op: int = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set,
                  ignore_name_scope: bool = False, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's share of the reduction, cut along the first dimension."""
    _check_scatter(op)
    with device(device_dense):
        compressed, ctx = compression.compress(_dense(tensor, compression))
        reduced = mpi_ops._reducescatter(compressed, name, op, ignore_name_scope, process_set,
                                         prescale_factor, postscale_factor)
        return compression.decompress(reduced, ctx)


def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "",
                          compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[Any]:
    """``reducescatter`` of several tensors as one operation."""
    if not tensors:
        return list(tensors)
    _check_scatter(op)
    with device(device_dense):
        compressed, contexts = zip(*[compression.compress(_dense(t, compression))
                                     for t in tensors])
        reduced = mpi_ops._grouped_reducescatter(compressed, None, op, False, process_set,
                                                 prescale_factor, postscale_factor)
        return [compression.decompress(r, ctx) for r, ctx in zip(reduced, contexts)]


__all__ = ["allreduce", "grouped_allreduce", "reducescatter", "grouped_reducescatter"]
