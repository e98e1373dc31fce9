"""``DistributedOptimizer`` for optimizers of ``tf.compat.v1`` and for those of Keras."""
from typing import Any, List, Optional

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._gradients import GradientReducer, check_groups
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.gradient_aggregation import LocalGradientAggregationHelper
from horovod.tensorflow.mpi_ops import Adasum, Average

_Base = tf.compat.v1.train.Optimizer


class _DistributedOptimizer(_Base):
    """An optimizer of TensorFlow 1 around another one, whose gradients are reduced."""

    def __init__(self, optimizer: Any, name: Optional[str], use_locking: bool,
                 reducer: GradientReducer,
                 aggregator: Optional[LocalGradientAggregationHelper]) -> None:
        super().__init__(use_locking, name or f"Distributed{type(optimizer).__name__}")
        self._optimizer = optimizer
        self._reducer = reducer
        self._aggregator = aggregator

    def compute_gradients(self, *args: Any, **kwargs: Any) -> List[tuple]:
        """The wrapped optimizer's gradients, reduced (unless they are summed up first)."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        if self._aggregator is not None:
            return pairs
        gradients, variables = zip(*pairs)
        return list(zip(self._reducer(gradients, variables), variables))

    def apply_gradients(self, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        if self._aggregator is None:
            return self._optimizer.apply_gradients(grads_and_vars, *args, **kwargs)
        gradients, variables = zip(*grads_and_vars)

        def reduce_and_apply(sums: List[Any]) -> None:
            reduced = self._reducer(sums, variables)
            self._optimizer.apply_gradients(list(zip(reduced, variables)), *args, **kwargs)
        return self._aggregator.apply_with(gradients, reduce_and_apply, lambda: None)

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.register_local(variable)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        return self._optimizer.variables(*args, **kwargs)


def DistributedOptimizer(optimizer: Any, name: Optional[str] = None, use_locking: bool = False,
                         device_dense: str = "", device_sparse: str = "",
                         compression: Any = Compression.none, sparse_as_dense: bool = False,
                         backward_passes_per_step: int = 1, op: int = Average,
                         gradient_predivide_factor: float = 1.0,
                         average_aggregated_gradients: bool = False, num_groups: int = 0,
                         groups: Any = None, process_set: ProcessSet = global_process_set,
                         scale_local_gradients: bool = True) -> Any:
    """An optimizer that reduces the gradients over the ranks before it applies them.

    Takes optimizers of Keras, as ``horovod.tensorflow.keras.DistributedOptimizer`` does, and
    those of ``tf.compat.v1.train``.
    """
    if not isinstance(optimizer, _Base):
        if op == Adasum:
            raise ValueError("op == Adasum is not supported with Keras optimizers")
        from horovod.tensorflow import keras as hvd_keras
        return hvd_keras.DistributedOptimizer(
            optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
            gradient_predivide_factor, op, backward_passes_per_step,
            average_aggregated_gradients, num_groups, groups, process_set,
            scale_local_gradients)
    reducer = GradientReducer(
        name or f"Distributed{type(optimizer).__name__}", device_dense, device_sparse,
        compression, sparse_as_dense, op, gradient_predivide_factor,
        check_groups(groups, num_groups), process_set, scale_local_gradients)
    aggregator = None
    if backward_passes_per_step > 1:
        aggregator = LocalGradientAggregationHelper(backward_passes_per_step, sparse_as_dense,
                                                    average_aggregated_gradients)
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, aggregator)
