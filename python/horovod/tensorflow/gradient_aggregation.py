"""The name that scripts of TensorFlow 1 know; one helper serves both."""
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager


class LocalGradientAggregationHelper(LocalGradientAggregationHelperEager):
    """Sums gradients over several passes before they are reduced."""
