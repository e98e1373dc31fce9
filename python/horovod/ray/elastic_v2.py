"""Elastic jobs through ``RayExecutor(min_workers=...)``.

The discovery of hosts works; running such a job does not yet, and says so.
"""
import dataclasses
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from horovod.ray import _discovery
from horovod.ray.adapter import Adapter, BaseParams
from horovod.runner.elastic.discovery import HostDiscovery

NOT_YET = ("elastic jobs on Ray are not part of this version; use a job of a fixed size, "
           "RayExecutor(num_workers=...), or Ray Train's HorovodTrainer, which restarts "
           "failed workers from their checkpoint")


def check_cooldown(cooldown_range: Optional[Sequence[int]]) -> None:
    """ValueError unless it is (low, high) within an hour."""
    if cooldown_range is None:
        return
    low, high = cooldown_range
    if low < 1 or high > 3600 or low > high:
        raise ValueError(f"cooldown_range must be (low, high) with 1 <= low <= high <= 3600, "
                         f"not {tuple(cooldown_range)}")


class RayHostDiscovery(HostDiscovery):
    """The nodes of the Ray cluster, with all that they have."""

    def __init__(self, use_gpu: bool = False, cpus_per_worker: Union[int, float] = 1,
                 gpus_per_worker: Union[int, float] = 1) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        return _discovery.find(self.use_gpu, self.cpus_per_worker, self.gpus_per_worker)


class TestDiscovery(RayHostDiscovery, _discovery.ChangingDiscovery):
    """The same, with hosts that come and go."""

    __test__ = False                    # the name is not for pytest

    def __init__(self, min_hosts: int, max_hosts: int, change_frequency_s: float,
                 use_gpu: bool = False, cpus_per_worker: Union[int, float] = 1,
                 gpus_per_worker: Union[int, float] = 1, verbose: bool = True,
                 _graceful: bool = True) -> None:
        RayHostDiscovery.__init__(self, use_gpu, cpus_per_worker, gpus_per_worker)
        _discovery.ChangingDiscovery.__init__(self, min_hosts, max_hosts, change_frequency_s,
                                              verbose, _graceful)

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        return self.change(super().find_available_hosts_and_slots())


@dataclasses.dataclass
class ElasticParams(BaseParams):
    """How few and how many workers."""

    min_workers: int = 1
    max_workers: Optional[int] = None
    reset_limit: Optional[int] = None
    cooldown_range: Optional[Sequence[int]] = None
    elastic_timeout: float = 600
    override_discovery: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cooldown(self.cooldown_range)

    @property
    def elastic(self) -> bool:
        return True

    @property
    def adapter(self) -> type:
        return ElasticAdapter


class ElasticAdapter(Adapter):
    """Knows what an elastic job would be; ``start`` says that there is none yet."""

    def __init__(self, settings: Any, min_workers: int, max_workers: Optional[int] = None,
                 use_gpu: bool = False, cpus_per_worker: Union[int, float] = 1,
                 gpus_per_worker: Optional[Union[int, float]] = None,
                 override_discovery: bool = True, reset_limit: Optional[int] = None,
                 cooldown_range: Optional[Sequence[int]] = None,
                 elastic_timeout: float = 600) -> None:
        check_cooldown(cooldown_range)
        self.settings = settings
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = gpus_per_worker
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range
        self.elastic_timeout = elastic_timeout
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_worker,
                                                  gpus_per_worker or 1)

    def start(self, executable_cls: Optional[type] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        raise NotImplementedError(NOT_YET)

    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None, queue: Any = None) -> List[Any]:
        raise NotImplementedError(NOT_YET)

    def execute(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        raise NotImplementedError(NOT_YET)

    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        raise NotImplementedError("run_remote is not supported in elastic mode")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        raise NotImplementedError("execute_single is not supported in elastic mode")

    def shutdown(self) -> None:
        """There is nothing to give back."""
