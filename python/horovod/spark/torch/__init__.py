"""Estimator for PyTorch modules: trains on a DataFrame, gives a transformer."""
from horovod.spark.torch.estimator import TorchEstimator, TorchModel

__all__ = ["TorchEstimator", "TorchModel"]
