"""Estimator for Lightning modules: trains on a DataFrame, gives a transformer."""
from horovod.spark.lightning.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
