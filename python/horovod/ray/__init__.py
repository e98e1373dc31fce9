"""Horovod on Ray.

    from horovod.ray import RayExecutor

Importing this imports ``ray``, but neither ``ray.train`` nor a framework.
"""
from horovod.common.needs import need

need("ray", "ray", "Ray", "ray")

from horovod.ray import _hook, ray_logger
from horovod.ray.elastic import ElasticRayExecutor
from horovod.ray.runner import RayExecutor
from horovod.ray.worker import BaseHorovodWorker

__all__ = ["RayExecutor", "BaseHorovodWorker", "ElasticRayExecutor"]

_hook.install()
