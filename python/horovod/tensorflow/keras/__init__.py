"""Horovod for ``model.fit`` of Keras 3 with the TensorFlow backend.

    import horovod.tensorflow.keras as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.001 * hvd.size()))
    model.compile(optimizer=optimizer, loss=...)
    model.fit(..., callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
"""
from typing import Any, Optional

from horovod import _keras
from horovod.common.process_sets import (ProcessSet, add_process_set, global_process_set,
                                         remove_process_set)
from horovod.tensorflow import _reductions, mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_global_variables
from horovod.tensorflow.keras import callbacks, elastic
from horovod.tensorflow.mpi_ops import (
    Adasum, Average, Sum, ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built,
    gloo_enabled, init, is_homogeneous, is_initialized, local_rank, local_size, mpi_built,
    mpi_enabled, mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size,
    start_timeline, stop_timeline)

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer", "PartialDistributedOptimizer",
    "ProcessSet", "Sum", "add_process_set", "allgather", "allreduce", "broadcast",
    "broadcast_global_variables", "callbacks", "ccl_built", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled",
    "init", "is_homogeneous", "is_initialized", "load_model", "local_rank", "local_size",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank", "reducescatter",
    "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline", "stop_timeline"]


def DistributedOptimizer(optimizer: Any, name: Optional[str] = None, device_dense: str = "",
                         device_sparse: str = "", compression: Any = Compression.none,
                         sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
                         op: int = Average, backward_passes_per_step: int = 1,
                         average_aggregated_gradients: bool = False, num_groups: int = 0,
                         groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """An optimizer of the same class that reduces the gradients over the ranks first.

    With ``backward_passes_per_step`` k gradients are summed up locally; every k-th step reduces
    and applies them.  The state of ``optimizer`` is taken over.
    """
    return _keras.create_distributed_optimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients,
        num_groups, groups, process_set, scale_local_gradients)


def PartialDistributedOptimizer(optimizer: Any, name: Optional[str] = None,
                                device_dense: str = "", device_sparse: str = "",
                                compression: Any = Compression.none,
                                sparse_as_dense: bool = False,
                                gradient_predivide_factor: float = 1.0, op: int = Average,
                                backward_passes_per_step: int = 1,
                                average_aggregated_gradients: bool = False, groups: Any = None,
                                process_set: ProcessSet = global_process_set,
                                local_layers: Any = None,
                                scale_local_gradients: bool = True) -> Any:
    """``DistributedOptimizer`` that leaves the gradients of ``local_layers`` alone."""
    return _keras.register_local_layers(DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients, 0,
        groups, process_set, scale_local_gradients), local_layers)


def _value(tensor: Any) -> Any:
    """Value in, value out."""
    return tensor.numpy() if hasattr(tensor, "numpy") else tensor


def allreduce(value: Any, name: Optional[str] = None, average: Optional[bool] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              op: Optional[int] = None, compression: Any = Compression.none) -> Any:
    """The reduction of a value over the ranks, as a value."""
    return _value(_reductions.allreduce(
        value, average, compression=compression, op=op, prescale_factor=prescale_factor,
        postscale_factor=postscale_factor, name=name))


def allgather(value: Any, name: Optional[str] = None) -> Any:
    """The values of all ranks one after the other, along the first dimension."""
    return _value(mpi_ops.allgather(value, name))


def broadcast(value: Any, root_rank: int, name: Optional[str] = None) -> Any:
    """The value of ``root_rank``."""
    return _value(mpi_ops.broadcast(value, root_rank, name))


def reducescatter(value: Any, name: Optional[str] = None, op: int = Average) -> Any:
    """This rank's share of the reduction."""
    return _value(_reductions.reducescatter(value, op=op, name=name))


def load_model(filepath: Any, custom_optimizers: Any = None, custom_objects: Any = None,
               compression: Any = Compression.none, legacy_opts: bool = False) -> Any:
    """A model saved by Keras, with a distributed optimizer in the state it was saved in."""
    return _keras.load_model(
        filepath, lambda optimizer: DistributedOptimizer(optimizer, compression=compression),
        custom_optimizers, custom_objects, legacy_opts)
