"""Batch normalization over the batches of all ranks."""
from typing import Any, Optional, Tuple

import keras
import tensorflow as tf

from horovod.common.advice import advised
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _names, mpi_ops
from horovod.tensorflow.mpi_ops import Sum


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """``keras.layers.BatchNormalization`` with the mean and variance of all ranks' batches.

    Ranks may have batches of different sizes: each sample counts the same.
    """

    def __init__(self, fused: Optional[bool] = False, process_set: Any = global_process_set,
                 **kwargs: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if not hasattr(keras, "version"):           # Keras 2 has another BatchNormalization
            raise ImportError(advised(
                "SyncBatchNormalization needs Keras 3, which comes with "
                "TensorFlow 2.16 and later"))
        super().__init__(**kwargs)
        self._process_set: ProcessSet = process_set

    def _moments(self, inputs: Any, mask: Any) -> Tuple[Any, Any]:
        """Sums and counts are added up over the ranks, then the squares of the distances from
        the common mean: nothing cancels."""
        axes = self._reduction_axes
        channels = tf.shape(inputs)[self.axis]
        if mask is None:
            weights = tf.ones([], inputs.dtype)
            count = tf.fill([channels], tf.cast(tf.size(inputs) / channels, inputs.dtype))
        else:
            weights = tf.expand_dims(tf.cast(mask, inputs.dtype), -1)
            count = tf.fill([channels], tf.reduce_sum(weights))
        total, count = self._added("mean", tf.reduce_sum(inputs * weights, axes), count)
        mean = tf.math.divide_no_nan(total, count)
        distance = inputs - self._spread(mean)
        square, = self._added("variance", tf.reduce_sum(distance ** 2 * weights, axes))
        return mean, tf.math.divide_no_nan(square, count)

    def _added(self, what: str, *tensors: Any) -> list:
        wire = None
        if not tf.executing_eagerly():
            scope = _names.scope(f"SyncBatchNormalization_{what}")
            wire = [f"{scope}.{i}" for i in range(len(tensors))]
        return mpi_ops._grouped_allreduce(list(tensors), None, Sum,
                                          process_set=self._process_set, wire=wire)

    def _spread(self, vector: Any) -> Any:
        """A vector over the channels, in the shape of the inputs."""
        shape = [1] * (len(self._reduction_axes) + 1)
        shape[self.axis] = -1
        return tf.reshape(vector, shape)
