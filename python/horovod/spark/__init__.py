"""Horovod on Spark.

    import horovod.spark
    results = horovod.spark.run(train, args=(config,), num_proc=4)

runs a function in four processes, one per Spark task; ``horovod.spark.run_elastic`` goes on
when executors are lost or gained.  ``horovod.spark.torch.TorchEstimator`` and
``horovod.spark.lightning.TorchEstimator`` train on a DataFrame.
"""
from horovod.common.needs import need

need("pyspark", "spark", "PySpark", "spark")

from horovod.spark.runner import run, run_elastic

__all__ = ["run", "run_elastic"]
