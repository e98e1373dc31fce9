"""What surrounds the user's loop in a process of Ray Train.

1. The GPU of the worker is the current device before the loop allocates anything.
2. A loop that ends leaves the Horovod job, as a process does that ends.  One that fails
   ends the job for all: the other ranks learn at once which rank failed and of what,
   instead of waiting for it in a collective.  Before ``hvd.init()`` there is no way to the
   others: the controller asks for the reason and hands it on.
3. A job that was there before the loop (local mode under horovodrun) stays.
"""
import os
from types import TracebackType
from typing import Optional, Type

import ray

from horovod import _core
from horovod.common.basics import HorovodBasics
from horovod.common.exceptions import HorovodInternalError
from horovod.ray import _actor


class LoopContext:
    """The context Ray Train enters around the loop, in the thread of the loop."""

    def __enter__(self) -> None:
        self._had_job = _core.is_initialized()
        _set_device()

    def __exit__(self, type: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if self._had_job:
            return
        if value is not None:
            self._tell(value)
        elif _core.is_initialized():
            HorovodBasics(__file__).shutdown()

    @staticmethod
    def _tell(error: BaseException) -> None:
        why = (f"the training loop of rank {os.environ.get('HOROVOD_RANK', 0)} raised "
               f"{_first_line(error)}")
        if not isinstance(error, HorovodInternalError):         # the echo of another's
            _actor.note_failure(why)
        if _core.is_initialized():
            _core.abort(why)


def _first_line(error: BaseException) -> str:
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}"[:400]


def _set_device() -> None:
    """cuda:i of this worker's own GPU, where Ray has given it one."""
    if not ray.is_initialized() or not ray.get_gpu_ids():
        return
    try:
        import torch
        from ray.train.torch import get_device
    except ImportError:             # a loop without torch
        return
    if torch.cuda.is_available():
        device = get_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
