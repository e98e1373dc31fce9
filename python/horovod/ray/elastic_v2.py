"""Elastic jobs through ``RayExecutor(min_workers=...)``."""
import dataclasses
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from horovod.ray import _discovery
from horovod.ray._calls import bound
from horovod.ray._elastic_job import ElasticJob, Options
from horovod.ray._places import ListedPlaces, Places, ReservedPlaces
from horovod.ray.adapter import Adapter, BaseParams
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.elastic.discovery import HostDiscovery


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
    """A job whose workers live for one call; between calls it holds nothing."""

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
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range
        self.elastic_timeout = elastic_timeout or float(
            os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or 600)
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_worker,
                                                  gpus_per_worker or 1)
        self._reserves = override_discovery
        self._executable: tuple = (None, None, None)
        self._variables: Dict[str, str] = {}
        self._places: Optional[Places] = None
        self._job: Optional[ElasticJob] = None

    # -- life -----------------------------------------------------------------------

    def start(self, executable_cls: Optional[type] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        """Waits until there is room for ``min_workers``, and keeps it; no worker yet."""
        self._executable = (executable_cls, executable_args, executable_kwargs)
        self._variables = {name: str(value) for name, value in (extra_env_vars or {}).items()}
        self._places = self._find_places()

    def _find_places(self) -> Places:
        places = self._make_places()
        try:
            places.wait(self.min_workers, self.elastic_timeout)
        except BaseException:
            places.close()
            raise
        return places

    def _make_places(self) -> Places:
        if not self._reserves:
            return ListedPlaces(self.settings.discovery)
        resources = {"CPU": float(self.cpus_per_worker), "GPU": float(self.gpus_per_worker)}
        return ReservedPlaces({name: amount for name, amount in resources.items() if amount} or
                              {"CPU": 0.001}, self.min_workers, self.max_workers)

    def shutdown(self) -> None:
        places, self._places, job = self._places, None, self._job
        if job is not None:             # of another thread
            job.cancel("the executor is being shut down")
        if places is not None:
            places.close()

    # -- calls ----------------------------------------------------------------------

    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None, queue: Any = None) -> List[Any]:
        return self.execute(bound(fn, args, kwargs), queue)

    def execute(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        if self._job is not None:
            raise RuntimeError("this executor runs a function already; an elastic job runs one "
                               "at a time, take another executor for another job")
        places, self._places = self._places or self._find_places(), None
        try:
            self._job = ElasticJob(self._options(), places)
            return self._job.run(fn, queue)
        finally:
            self._job = None
            places.close()

    def _options(self) -> Options:
        resources: Dict[str, float] = {"num_cpus": self.cpus_per_worker}
        if self.use_gpu:
            resources["num_gpus"] = self.gpus_per_worker
        return Options(self.settings, self.min_workers, self.max_workers, resources,
                       self.reset_limit, self.cooldown_range, self.elastic_timeout,
                       self._variables, self._executable)

    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        raise NotImplementedError("run_remote is not supported in elastic mode: it is not known "
                                  "how many results there will be; use run")

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        raise NotImplementedError("execute_single is not supported in elastic mode: workers "
                                  "live for one call; use run, and let rank 0 do it")

    # -- looking --------------------------------------------------------------------

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        """Who is in a slot now; without a host name: nobody."""
        workers = list(self._job.workers.values()) if self._job is not None else []
        for worker in workers:
            if (worker.host, worker.slot, worker.is_over) == (host, slot, False):
                return SlotInfo(host, worker.rank, int(worker.env["HOROVOD_LOCAL_RANK"]),
                                int(worker.env["HOROVOD_CROSS_RANK"]), worker.spawn_size,
                                int(worker.env["HOROVOD_LOCAL_SIZE"]),
                                int(worker.env["HOROVOD_CROSS_SIZE"]))
        return SlotInfo("", -1, -1, -1, -1, -1, -1)

    def get_worker_client(self, slot_info: SlotInfo) -> Any:
        """The actor of that rank, or None."""
        workers = list(self._job.workers.values()) if self._job is not None else []
        return next((w.actor for w in workers
                     if w.host == slot_info.hostname and w.rank == slot_info.rank and
                     not w.is_over), None)
