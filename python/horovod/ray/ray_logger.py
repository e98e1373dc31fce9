"""Values from workers to callbacks on the driver.

    from horovod.ray import ray_logger

    def train():
        ray_logger.log({"loss": 0.5})

    executor.run(train, callbacks=[print])
"""
import warnings
from typing import Any, Dict

_queue: Any = None
_warned = False


def configure(queue: Any) -> None:
    """Where ``log`` sends; None: nowhere."""
    global _queue, _warned
    _queue = queue
    _warned = False


def log(info_dict: Dict[str, Any]) -> None:
    """Hands a value to every callback of the running call."""
    global _warned
    if _queue is not None:
        _queue.put(info_dict)
    elif not _warned:
        _warned = True
        warnings.warn("ray_logger.log has no effect: the call has no callbacks", UserWarning,
                      stacklevel=2)
