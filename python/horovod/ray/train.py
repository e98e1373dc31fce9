"""Ray Train: ``HorovodTrainer`` and ``HorovodConfig``.

    from horovod.ray.train import HorovodTrainer        # or: from ray.train.horovod ...

    trainer = HorovodTrainer(train_loop, scaling_config=ScalingConfig(num_workers=2))
    result = trainer.fit()

Under Ray Train V2, the default since Ray 2.51, these are our classes.  Under V1
(``RAY_TRAIN_V2_ENABLED=0``) they are Ray's own, which use our ``Coordinator``.
"""
import os
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Optional, Set, Type, Union

import ray

from horovod.common.advice import advised

try:
    from ray.train.backend import Backend, BackendConfig
    from ray.train.v2._internal.constants import is_v2_enabled
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
except ImportError as e:
    raise ImportError(advised(
        f"horovod.ray.train needs Ray Train of Ray 2.51 or later (ray[train]>=2.51); Ray "
        f"{ray.__version__} is installed, and: {e}")) from e

from horovod.ray import _train_convert as _convert
from horovod.ray._train_backend import HorovodBackend
from horovod.ray._train_worker import LoopContext
from horovod.runner.common.util import secret, timeout

__all__ = ["HorovodConfig", "HorovodTrainer"]

@dataclass
class HorovodConfig(BackendConfig):
    """How Ray Train sets up Horovod.

    ``nics`` limits the network interfaces, ``timeout_s`` the time in which the workers must
    find each other.  ``key`` is the secret of the job, made up when it is not given.
    ``ssh_port``, ``ssh_identity_file``, ``ssh_str`` and ``placement_group_timeout_s`` are
    accepted for scripts of the original: nothing goes through ssh on Ray.
    """
    nics: Optional[Set[str]] = None
    verbose: int = 1
    key: Union[None, str, bytes] = field(default=None, repr=False)
    ssh_port: Optional[int] = None
    ssh_identity_file: Optional[str] = None
    ssh_str: Optional[str] = field(default=None, repr=False)
    timeout_s: int = 300
    placement_group_timeout_s: int = 100
    # The user's HOROVOD_* variables of the driver; the trainer fills it.
    variables: Dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.ssh_str:
            _write_identity(self.ssh_identity_file, self.ssh_str)
        if self.key is None:
            self.key = secret.make_secret_key()

    @property
    def start_timeout(self) -> timeout.Timeout:
        """A new limit on each read."""
        return timeout.Timeout(
            self.timeout_s, "Timed out waiting for {activity}. Check the connectivity between "
            "the nodes, or raise HorovodConfig(timeout_s=...).")

    @property
    def backend_cls(self) -> Type[Backend]:
        return HorovodBackend

    @property
    def train_func_context(self) -> Callable[[], Any]:
        return LoopContext

    def to_dict(self) -> Dict[str, Any]:
        """What Ray may export and show: everything but the secrets."""
        return {"nics": sorted(self.nics) if self.nics else None, "verbose": self.verbose,
                "timeout_s": self.timeout_s,
                "placement_group_timeout_s": self.placement_group_timeout_s,
                "variables": dict(self.variables)}

    def _repr_html_(self) -> str:
        from html import escape
        return f"<pre>{escape(repr(self))}</pre>"


def _write_identity(path: Optional[str], text: str) -> None:
    if path is None:
        raise ValueError("HorovodConfig(ssh_str=...) needs ssh_identity_file, the file to "
                         "write it to")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


class HorovodTrainer(DataParallelTrainer):
    """Runs a training loop on Ray workers that form a Horovod job.

    The loop calls ``hvd.init()`` itself.  Datasets, ``ray.train.report``, checkpoints and
    ``FailureConfig`` work as with every trainer of Ray Train; after a failure all workers
    start again, and the loop continues from ``ray.train.get_checkpoint()``.

    ``HOROVOD_*`` variables that are set where the trainer is built reach the workers.
    """

    def __init__(self, train_loop_per_worker: Callable[..., Any], *,
                 train_loop_config: Optional[Dict] = None,
                 horovod_config: Any = None, scaling_config: Any = None,
                 dataset_config: Any = None, run_config: Any = None,
                 datasets: Optional[Dict[str, Any]] = None,
                 metadata: Optional[Dict[str, Any]] = None,
                 resume_from_checkpoint: Any = None,
                 tensorflow_backend: Any = None, **kwargs: Any) -> None:
        config = _convert.backend_config(
            HorovodConfig, _convert.spelling(horovod_config, tensorflow_backend))
        variables = _convert.variables({**os.environ, **config.variables})
        super().__init__(
            train_loop_per_worker, train_loop_config=train_loop_config,
            backend_config=replace(config, variables=variables),
            scaling_config=_convert.scaling_config(scaling_config),
            dataset_config=dataset_config,
            run_config=_convert.run_config(run_config), datasets=datasets,
            metadata=metadata, resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _create_default_callbacks(self) -> List[Any]:
        callbacks = super()._create_default_callbacks()
        if isinstance(self.scaling_config.num_workers, tuple):
            from horovod.ray._train_scaling import NodeWatch
            callbacks.append(NodeWatch())
        return callbacks

    def _get_local_controller(self) -> Any:
        if int(os.environ.get("HOROVOD_SIZE") or 1) == 1:
            return super()._get_local_controller()
        from horovod.ray._train_local import LocalHorovodController
        return LocalHorovodController(experiment_name=self.run_config.name,
                                      datasets=self.datasets)


if not is_v2_enabled():
    from ray.train.horovod.config import HorovodConfig              # type: ignore # noqa
    from ray.train.horovod.horovod_trainer import HorovodTrainer    # type: ignore # noqa
