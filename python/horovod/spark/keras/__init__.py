"""Not part of this package."""
from horovod.common.advice import advised

raise ImportError(advised(
    "horovod.spark.keras is not available: horovod.spark has estimators for "
    "PyTorch (horovod.spark.torch) and Lightning (horovod.spark.lightning)"))
