"""Not part of this package."""
raise ImportError("horovod.spark.tensorflow is not available: horovod.spark has estimators for "
                  "PyTorch (horovod.spark.torch) and Lightning (horovod.spark.lightning)")
