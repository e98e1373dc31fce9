"""What surrounds the user's loop: on a worker of Ray Train, and in local mode.

1. The GPU of the worker is the current device before the loop allocates anything.
2. A loop that ends leaves the Horovod job, as a process does that ends.  One that fails
   ends the job for all: the other ranks learn at once which rank failed and of what,
   instead of waiting for it in a collective.
3. A job that was there before the loop (local mode under horovodrun) stays.
"""
import os
from types import TracebackType
from typing import Any, Callable, Optional, Type

import ray
from ray.train import Result
from ray.train.v2._internal.execution.local_mode.utils import LocalController
from ray.train.v2._internal.execution.train_fn_utils import (
    LocalTrainFnUtils, get_train_fn_utils, set_train_fn_utils)

from horovod import _core
from horovod.common.basics import HorovodBasics


class LoopContext:
    """The context Ray Train enters around the loop, in the thread of the loop."""

    def __enter__(self) -> None:
        self._had_job = _core.is_initialized()
        _set_device()

    def __exit__(self, type: Optional[Type[BaseException]], value: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if self._had_job or not _core.is_initialized():
            return
        if value is None:
            HorovodBasics(__file__).shutdown()
        else:
            _core.abort(f"the training loop of rank {_core.rank()} raised "
                        f"{_first_line(value)}")


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


class LocalHorovodController(LocalController):
    """``num_workers=0``: the loop runs in this process.

    It is a job of one process, or what horovodrun has made of it; then every process of
    horovodrun calls ``fit()``.
    """

    def run(self, train_func: Callable[[], Any]) -> Result:
        size = _number("SIZE", 1)
        if size > 1 and self.datasets:
            raise ValueError("Ray Data needs workers of Ray: datasets are not supported in "
                             "local mode (num_workers=0) under horovodrun")
        set_train_fn_utils(LocalTrainFnUtils(
            experiment_name=self.experiment_name, dataset_shards=self.datasets,
            world_size=size, world_rank=_number("RANK", 0),
            local_rank=_number("LOCAL_RANK", 0), local_world_size=_number("LOCAL_SIZE", 1),
            node_rank=_number("CROSS_RANK", 0)))
        value = train_func()
        utils = get_train_fn_utils()
        assert isinstance(utils, LocalTrainFnUtils)
        return Result(metrics=utils._get_last_metrics(), checkpoint=utils.get_checkpoint(),
                      path=None, error=None, return_value=value)


def _number(name: str, default: int) -> int:
    return int(os.environ.get("HOROVOD_" + name) or default)
