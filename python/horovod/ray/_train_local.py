"""Local mode (``num_workers=0``) under horovodrun: every process of it calls ``fit()``.

Without horovodrun Ray's own controller serves: the loop is a job of one process.  This file
uses what is private to Ray's local mode, and is imported only where it is needed.
"""
import os
from typing import Any, Callable

from ray.train import Result
from ray.train.v2._internal.execution.local_mode.utils import LocalController
from ray.train.v2._internal.execution.train_fn_utils import (
    LocalTrainFnUtils, get_train_fn_utils, set_train_fn_utils)

from horovod.common.advice import advised


class LocalHorovodController(LocalController):
    """``ray.train.get_context()`` tells the ranks that horovodrun has given."""

    def run(self, train_func: Callable[[], Any]) -> Result:
        if self.datasets:
            raise ValueError(advised(
                "Ray Data needs workers of Ray: datasets are not supported in "
                "local mode (num_workers=0) under horovodrun"))
        set_train_fn_utils(LocalTrainFnUtils(
            experiment_name=self.experiment_name, dataset_shards=self.datasets,
            world_size=_number("SIZE"), world_rank=_number("RANK"),
            local_rank=_number("LOCAL_RANK"), local_world_size=_number("LOCAL_SIZE"),
            node_rank=_number("CROSS_RANK")))
        value = train_func()
        utils = get_train_fn_utils()
        return Result(metrics=utils._get_last_metrics(), checkpoint=utils.get_checkpoint(),
                      path=None, error=None, return_value=value)


def _number(name: str) -> int:
    return int(os.environ["HOROVOD_" + name])
