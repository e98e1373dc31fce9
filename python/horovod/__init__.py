"""Horovod: data-parallel training with five lines more in a script.

    import horovod.torch as hvd

    hvd.init()
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

Started with ``horovodrun -np 4 python train.py``, or from Python with ``horovod.run``.
Importing this package imports no framework; it makes ``strategy="horovod"`` known to
Lightning, whenever that is imported.
"""
from horovod import _startup

TYPE_CHECKING = False               # every process of a job imports this: not typing as well
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.29.0"
__all__ = ["run", "__version__"]


def __getattr__(name: str) -> "Any":
    if name == "run":
        from horovod.runner import run
        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


_startup.install()
