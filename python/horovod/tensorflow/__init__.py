"""Horovod for TensorFlow 2.

    import tensorflow as tf
    import horovod.tensorflow as hvd

    hvd.init()
    hvd.broadcast_variables(model.variables, root_rank=0)

    with tf.GradientTape() as tape:
        loss = ...
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)

For ``model.fit`` see ``horovod.tensorflow.keras``.
"""
from typing import Any

from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import (ProcessSet, add_process_set, global_process_set,
                                         remove_process_set)
from horovod.tensorflow import _library            # first: it says what is missing
from horovod.tensorflow import elastic
from horovod.tensorflow._gradients import _make_allreduce_grads_fn
from horovod.tensorflow._optimizer import DistributedOptimizer
from horovod.tensorflow._reductions import (allreduce, grouped_allreduce, grouped_reducescatter,
                                            reducescatter)
from horovod.tensorflow._tape import DistributedGradientTape, PartialDistributedGradientTape
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import (BroadcastGlobalVariablesHook, allgather_object,
                                          broadcast_, broadcast_global_variables,
                                          broadcast_object, broadcast_object_fn,
                                          broadcast_variables)
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import (
    Adasum, Average, Max, Min, Product, Sum, _allreduce, _grouped_allreduce, _reducescatter,
    abort, allgather, alltoall, broadcast, ccl_built, check_num_rank_power_of_2, cross_rank,
    cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled, grouped_allgather,
    handle_average_backwards_compatibility, init, is_homogeneous, is_initialized, join,
    local_rank, local_rank_op, local_size, local_size_op, mpi_built, mpi_enabled,
    mpi_threads_supported, nccl_built, process_set_included_op, rank, rank_op, rocm_built,
    shutdown, size, size_op, start_timeline, stats, stop_timeline)
from horovod.tensorflow.util import _cache, _executing_eagerly, refs_to_vars, vars_to_refs

__all__ = [
    "Adasum", "Average", "BroadcastGlobalVariablesHook", "Compression", "DistributedGradientTape",
    "DistributedOptimizer", "HorovodInternalError", "LocalGradientAggregationHelper", "Max",
    "Min", "PartialDistributedGradientTape", "ProcessSet", "Product", "Sum",
    "SyncBatchNormalization", "_allreduce", "_cache", "_executing_eagerly",
    "_grouped_allreduce", "_make_allreduce_grads_fn", "_reducescatter", "abort",
    "add_process_set", "allgather", "allgather_object", "allreduce", "alltoall", "broadcast",
    "broadcast_", "broadcast_global_variables", "broadcast_object", "broadcast_object_fn",
    "broadcast_variables", "ccl_built", "check_num_rank_power_of_2", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "elastic", "global_process_set", "gloo_built", "gloo_enabled",
    "grouped_allgather", "grouped_allreduce", "grouped_reducescatter",
    "handle_average_backwards_compatibility", "init", "is_homogeneous", "is_initialized", "join",
    "local_rank", "local_rank_op", "local_size", "local_size_op", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "process_set_included_op", "rank", "rank_op",
    "reducescatter", "refs_to_vars", "remove_process_set", "rocm_built", "shutdown", "size",
    "size_op", "start_timeline", "stats", "stop_timeline", "vars_to_refs"]


def __getattr__(name: str) -> Any:
    """What needs Keras is imported when it is used."""
    if name == "SyncBatchNormalization":
        from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
        return SyncBatchNormalization
    if name == "keras":
        import importlib
        return importlib.import_module("horovod.tensorflow.keras")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
