"""Jobs of a fixed size: ``StaticParams``, ``StaticAdapter``."""
import dataclasses
import os
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import ray
from ray.util.placement_group import get_current_placement_group

from horovod.common.advice import advised
from horovod.ray import utils
from horovod.ray._calls import Workers, bound, swallow
from horovod.ray._coordinator import Coordinator
from horovod.ray.adapter import Adapter, BaseParams
from horovod.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy

LEAVE_S = 2.0                   # how long workers have to leave the job in order


@dataclasses.dataclass
class StaticParams(BaseParams):
    """How many workers, and where."""

    num_workers: Optional[int] = None
    num_hosts: Optional[int] = None
    num_workers_per_host: Optional[int] = 1
    use_current_placement_group: bool = True

    @property
    def elastic(self) -> bool:
        return False

    @property
    def adapter(self) -> type:
        return StaticAdapter


class StaticAdapter(Adapter):
    """A job whose workers live from start to shutdown."""

    def __init__(self, settings: Any, num_workers: Optional[int] = None,
                 num_hosts: Optional[int] = None, num_workers_per_host: Optional[int] = 1,
                 use_current_placement_group: bool = True,
                 cpus_per_worker: Union[int, float] = 1, use_gpu: bool = False,
                 gpus_per_worker: Optional[Union[int, float]] = None) -> None:
        self.settings = settings
        self.num_workers = num_workers
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host
        self.use_current_placement_group = use_current_placement_group
        self.cpus_per_worker = cpus_per_worker
        self.use_gpu = use_gpu
        self.gpus_per_worker = gpus_per_worker
        self.strategy: Optional[BaseStrategy] = None
        self.coordinator: Optional[Coordinator] = None
        self._workers: Optional[Workers] = None
        self._variables: List[Dict[str, str]] = []
        self._has_executable = False

    # -- start ----------------------------------------------------------------------

    def _choose_strategy(self) -> BaseStrategy:
        count = self._count()
        common = dict(settings=self.settings, use_gpu=self.use_gpu,
                      cpus_per_worker=self.cpus_per_worker,
                      gpus_per_worker=self.gpus_per_worker)
        ambient = get_current_placement_group() if self.use_current_placement_group else None
        if self.num_workers or ambient is not None:
            return PGStrategy(num_workers=count, placement_group=ambient,
                              force_create_placement_group=ambient is None, **common)
        return ColocatedStrategy(num_hosts=count // int(self.num_workers_per_host or 1),
                                 num_workers_per_host=int(self.num_workers_per_host or 1),
                                 **common)

    def _count(self) -> int:
        if self.num_workers and self.num_hosts:
            raise ValueError("give num_workers, or num_hosts and num_workers_per_host, not "
                             "both")
        if self.num_workers:
            count = self.num_workers
        else:
            count = (self.num_hosts or 0) * (self.num_workers_per_host or 0)
        if count < 1:
            raise ValueError(
                f"a job needs workers: num_workers is {self.num_workers}, num_hosts "
                f"{self.num_hosts}, num_workers_per_host {self.num_workers_per_host}")
        return count

    def start(self, executable_cls: Optional[type] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        try:
            self._start(extra_env_vars)
            self._has_executable = executable_cls is not None
            if executable_cls is not None:
                self._made_workers().call(lambda rank, actor: actor.start_executable.remote(
                    executable_cls, executable_args, executable_kwargs))
        except BaseException:
            self.shutdown()
            raise

    def _start(self, extra_env_vars: Optional[Mapping[str, str]]) -> None:
        self.strategy = self._choose_strategy()
        actors, _ = self.strategy.create_workers()
        facts = self.strategy.facts
        self.coordinator = Coordinator(self.settings)
        for rank, f in enumerate(facts):
            self.coordinator.register(f["hostname"], f["node_id"], rank)
        self._workers = Workers(actors, facts, self.coordinator)
        rendezvous = self.coordinator.serve()
        topology = self.coordinator.finalize_registration()
        self._variables = [{
            **self._nics(facts, f), **utils.user_variables(dict(os.environ)),
            "HOROVOD_HOSTNAME": f["node_id"], "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(len(facts)),
            **{name: str(value) for name, value in topology[rank].items()},
            **rendezvous, **(extra_env_vars or {}),
        } for rank, f in enumerate(facts)]
        self._push()

    def _nics(self, facts: Sequence[Dict[str, Any]], own: Dict[str, Any]) -> Dict[str, str]:
        nics = utils.choose_nics(facts, self.settings.nics)
        if not nics and own["interface"]:
            nics = [own["interface"]]
        return utils.nics_to_env_var(nics)

    def _push(self) -> None:
        workers, key = self._made_workers(), self._made_workers().coordinator.key
        workers.call(lambda rank, actor: actor._setup.remote(self._variables[rank], key))

    # -- calls ----------------------------------------------------------------------

    def _made_workers(self) -> Workers:
        if self._workers is None:
            raise RuntimeError("the workers of this job have been shut down")
        return self._workers

    def _ready_workers(self) -> Workers:
        """The workers, in a new generation if the one before was aborted."""
        workers = self._made_workers()
        if workers.dead:
            rank, why = next(iter(workers.dead.items()))
            raise RuntimeError(advised(
                f"{workers.who(rank)} has died in an earlier call ({why}); "
                f"shut the executor down and start it again"))
        # Objects that live on the workers were left in the middle of something: they may
        # still be asked, but their collectives say why the job is over.
        if workers.aborted is not None and not self._has_executable:
            self._renew(workers)
        return workers

    def _renew(self, workers: Workers) -> None:
        variables = workers.coordinator.serve()
        for own in self._variables:
            own["HOROVOD_GENERATION"] = variables["HOROVOD_GENERATION"]
        why, workers.aborted = workers.aborted, None
        try:
            self._push()
        except BaseException:
            workers.aborted = why
            raise

    def execute(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        return self._ready_workers().run(fn, queue)

    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None, queue: Any = None) -> List[Any]:
        return self._ready_workers().run(bound(fn, args, kwargs), queue)

    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        return self._ready_workers().run_remote(bound(fn, args, kwargs))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        return self._ready_workers().run_single(fn)

    # -- end ------------------------------------------------------------------------

    def shutdown(self) -> None:
        workers, self._workers = self._workers, None
        strategy, self.strategy = self.strategy, None
        coordinator, self.coordinator = self.coordinator, None
        try:
            if ray.is_initialized():        # else everything has gone with Ray
                self._end_workers(workers, strategy)
        finally:
            if coordinator is not None:
                coordinator.shutdown()

    @staticmethod
    def _end_workers(workers: Optional[Workers], strategy: Optional[BaseStrategy]) -> None:
        if workers is not None:
            if swallow([actor._leave.remote() for actor in workers.actors], LEAVE_S):
                workers.abort("the executor is being shut down")
        if strategy is not None:
            strategy.shutdown()
        if workers is not None:
            workers.join(LEAVE_S)
