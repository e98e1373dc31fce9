"""Horovod on Ray.

    from horovod.ray import RayExecutor

Importing this imports ``ray``, but neither ``ray.train`` nor a framework.
"""
from horovod.ray import _hook

_hook.install()
