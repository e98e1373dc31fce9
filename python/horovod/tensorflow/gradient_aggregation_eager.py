"""Gradients summed over several passes before they are reduced, in TensorFlow 2."""
from typing import Any, Callable, List, Sequence

import tensorflow as tf

from horovod.common.advice import advised


class LocalGradientAggregationHelperEager:
    """Sums gradients in variables; every k-th call hands the sums on.

    ``apply_with`` calls ``reduce_and_apply`` with the sums in the k-th call, and ``skip``
    in the others; in a graph the decision is made when it runs, alike on all ranks.
    """

    def __init__(self, backward_passes_per_step: int, sparse_as_dense: bool,
                 average_aggregated_gradients: bool) -> None:
        self.backward_passes_per_step = backward_passes_per_step
        self.sparse_as_dense = sparse_as_dense
        self.average_aggregated_gradients = average_aggregated_gradients
        self.counter: Any = None
        self.sums: List[Any] = []

    def build(self, gradients: Sequence[Any]) -> None:
        """Makes the variables, once, outside of any graph."""
        if self.counter is not None:
            return
        with tf.init_scope():
            self.counter = tf.Variable(0, trainable=False, dtype=tf.int32)
            self.sums = [None if g is None else tf.Variable(
                tf.zeros(g.shape, g.dtype), trainable=False) for g in gradients]

    def _dense(self, gradient: Any) -> Any:
        if not isinstance(gradient, tf.IndexedSlices):
            return gradient
        if not self.sparse_as_dense:
            raise ValueError(advised(
                "IndexedSlices are not supported when backward_passes_per_step > 1 "
                "and sparse_as_dense is False"))
        return tf.convert_to_tensor(gradient)

    def apply_with(self, gradients: Sequence[Any], reduce_and_apply: Callable,
                   skip: Callable) -> None:
        gradients = [self._dense(g) for g in gradients]
        self.build(gradients)
        for total, gradient in zip(self.sums, gradients):
            if total is not None and gradient is not None:
                total.assign_add(gradient)
        self.counter.assign_add(1)

        def full() -> Any:
            self.counter.assign(0)
            reduce_and_apply([None if s is None else self._result(s) for s in self.sums])
            for total in self.sums:
                if total is not None:
                    total.assign(tf.zeros_like(total))
            return tf.constant(True)

        def partial() -> Any:
            skip()
            return tf.constant(False)

        tf.cond(tf.equal(self.counter, self.backward_passes_per_step), full, partial)

    def _result(self, total: Any) -> Any:
        value = total.read_value()
        if self.average_aggregated_gradients:
            value = value / tf.cast(self.backward_passes_per_step, value.dtype)
        return value
