"""Where the workers go: placement groups and the actors in them."""
import math
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import ray
from ray.util.placement_group import PlacementGroup, get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.common.advice import advised
from horovod.ray import _calls
from horovod.ray.worker import BaseHorovodWorker

# A group that is ready has the resources; a process that imports Ray still takes seconds,
# on a busy machine a minute.
ACTOR_START_S = 100.0


def create_placement_group(resources_per_bundle: Dict[str, float], num_bundles: int,
                           pg_timeout: float, pg_strategy: str
                           ) -> Tuple[PlacementGroup, List[Dict[str, float]]]:
    """A group that is ready, and its bundles; TimeoutError when it is not ready in time."""
    bundles = [dict(resources_per_bundle) for _ in range(num_bundles)]
    group = ray.util.placement_group(bundles, strategy=pg_strategy)
    try:
        ready = group.wait(timeout_seconds=pg_timeout)
    except BaseException:
        ray.util.remove_placement_group(group)
        raise
    if not ready:
        ray.util.remove_placement_group(group)
        raise TimeoutError(advised(
            f"Placement group creation timed out after {pg_timeout} s. Make sure your cluster "
            f"either has enough resources or use an autoscaling cluster. Current resources "
            f"available: {ray.available_resources()}, resources requested by the placement "
            f"group: {bundles} ({pg_strategy})"))
    return group, bundles


class BaseStrategy:
    """Makes the actors of a job in rank order, and ends them."""

    placement_group: Optional[PlacementGroup] = None
    _created_placement_group = False

    def __init__(self, *, settings: Any, use_gpu: bool, cpus_per_worker: Union[int, float],
                 gpus_per_worker: Optional[Union[int, float]]) -> None:
        self.settings = settings
        self.use_gpu = use_gpu
        self.cpus_per_worker = cpus_per_worker
        self.gpus_per_worker = (gpus_per_worker or 1) if use_gpu else 0
        self.workers: List[Any] = []
        self.facts: List[Dict[str, Any]] = []       # _actor.facts by rank

    @property
    def num_workers(self) -> int:
        raise NotImplementedError

    def create_workers(self) -> Tuple[List[Any], List[Any]]:
        """(actors by rank, one actor of each host name)"""
        raise NotImplementedError

    def _resources(self, workers: int) -> Dict[str, float]:
        resources = {"CPU": self.cpus_per_worker * workers}
        if self.use_gpu:
            resources["GPU"] = self.gpus_per_worker * workers
        return {name: amount for name, amount in resources.items() if amount} or {"CPU": 0.001}

    def _create_group(self, workers: int, bundles: int, spread: str) -> None:
        self.placement_group, _ = create_placement_group(
            self._resources(workers), bundles, self.settings.placement_group_timeout_s, spread)
        self._created_placement_group = True

    def _create_actors(self, bundle_of: Any) -> Tuple[List[Any], List[Any]]:
        for rank in range(self.num_workers):
            options: Dict[str, Any] = dict(
                num_cpus=self.cpus_per_worker, num_gpus=self.gpus_per_worker,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.placement_group, placement_group_bundle_index=bundle_of(rank),
                    placement_group_capture_child_tasks=False))
            self.workers.append(_actor_class().options(**options).remote(
                world_rank=rank, world_size=self.num_workers))
        self.facts = self._ask_facts()
        if self.use_gpu:
            self._share_gpus()
        seen: Dict[str, Any] = {}
        for worker, facts in zip(self.workers, self.facts):
            seen.setdefault(facts["hostname"], worker)
        return self.workers, list(seen.values())

    def _ask_facts(self) -> List[Dict[str, Any]]:
        limit = max(self.settings.placement_group_timeout_s, ACTOR_START_S)
        refs = [worker._facts.remote() for worker in self.workers]
        end = time.monotonic() + limit
        for rank, ref in enumerate(refs):
            try:
                ray.get(ref, timeout=max(0.0, end - time.monotonic()))
            except ray.exceptions.GetTimeoutError:
                missing = [r for r, x in enumerate(refs) if not ray.wait([x], timeout=0)[0]]
                raise TimeoutError(advised(
                    f"the workers of ranks {missing} have not started within {limit} s; "
                    f"resources available: {ray.available_resources()}, asked for by each: "
                    f"{self._resources(1)}")) from None
            except ray.exceptions.RayError as error:
                raise _calls.named(error, f"rank {rank}, which was about to start,") from None
        return ray.get(refs)

    def _share_gpus(self) -> None:
        """All GPUs of the job on a node are visible to all its ranks there, in the order of
        local ranks."""
        by_node: Dict[str, List[str]] = {}
        for facts in self.facts:
            ids = by_node.setdefault(facts["node_id"], [])
            ids += [text for text in map(str, facts["gpu_ids"]) if text not in ids]
        ray.get([worker.update_env_vars.remote(
            {"CUDA_VISIBLE_DEVICES": ",".join(by_node[facts["node_id"]])})
            for worker, facts in zip(self.workers, self.facts)])

    def shutdown(self) -> None:
        """Ends the actors, and removes the group if it is our own."""
        workers, self.workers = self.workers, []
        for worker in workers:
            ray.kill(worker)
        if self._created_placement_group and self.placement_group is not None:
            ray.util.remove_placement_group(self.placement_group)
        self._created_placement_group = False
        self.placement_group = None


class ColocatedStrategy(BaseStrategy):
    """So many workers on each of so many nodes."""

    def __init__(self, *, settings: Any, num_hosts: int, num_workers_per_host: int,
                 use_gpu: bool, cpus_per_worker: Union[int, float],
                 gpus_per_worker: Optional[Union[int, float]]) -> None:
        super().__init__(settings=settings, use_gpu=use_gpu, cpus_per_worker=cpus_per_worker,
                         gpus_per_worker=gpus_per_worker)
        self.num_hosts = num_hosts
        self.num_workers_per_host = num_workers_per_host

    @property
    def num_workers(self) -> int:
        return self.num_hosts * self.num_workers_per_host

    def create_workers(self) -> Tuple[List[Any], List[Any]]:
        self._create_group(self.num_workers_per_host, self.num_hosts, "STRICT_SPREAD")
        return self._create_actors(lambda rank: rank // self.num_workers_per_host)


class PGStrategy(BaseStrategy):
    """So many workers wherever there is room: in the group this process is in, or in one of
    its own."""

    def __init__(self, *, settings: Any, num_workers: int, use_gpu: bool,
                 cpus_per_worker: Union[int, float],
                 gpus_per_worker: Optional[Union[int, float]],
                 placement_group: Optional[PlacementGroup] = None,
                 force_create_placement_group: bool = False) -> None:
        super().__init__(settings=settings, use_gpu=use_gpu, cpus_per_worker=cpus_per_worker,
                         gpus_per_worker=gpus_per_worker)
        self._num_workers = num_workers
        if not force_create_placement_group:
            self.placement_group = placement_group or get_current_placement_group()

    @property
    def num_workers(self) -> int:
        return self._num_workers

    def create_workers(self) -> Tuple[List[Any], List[Any]]:
        if self.placement_group is not None:
            self._await_room(self.placement_group)
            return self._create_actors(lambda rank: -1)
        self._create_group(1, self.num_workers, "PACK")
        return self._create_actors(lambda rank: rank)


    def _await_room(self, group: PlacementGroup) -> None:
        """Waits for resources of the group, as a group of our own waits for those of the
        cluster.  What the group cannot give in the best case is an error at once."""
        end = time.monotonic() + self.settings.placement_group_timeout_s
        wishes = {"CPU": self.cpus_per_worker, "GPU": self.gpus_per_worker}
        need = {name: amount for name, amount in wishes.items() if amount}
        own = _own_resources(group)
        if room(group.bundle_specs, need, own) < self.num_workers:
            raise ValueError(self._no_room(group, need, f", of which the caller holds {own}"
                                           if own else ""))
        while room(_free(group), need) < self.num_workers:
            if time.monotonic() > end:
                raise TimeoutError(self._no_room(
                    group, need, f", with {_free(group)} free after "
                    f"{self.settings.placement_group_timeout_s} s"))
            time.sleep(0.1)

    def _no_room(self, group: PlacementGroup, need: Dict[str, float], state: str) -> str:
        return (f"{self.num_workers} workers of {need} do not fit into the placement group "
                f"{group.id.hex()} of the caller: its bundles are {group.bundle_specs}{state}. "
                f"Ask for fewer, make the group larger, or give "
                f"RayExecutor(use_current_placement_group=False), which reserves its own")


def room(bundles: Sequence[Mapping[str, float]], need: Mapping[str, float],
         taken: Optional[Mapping[str, float]] = None) -> float:
    """How many workers fit; ``taken`` is what somebody holds of one bundle, where it costs
    least."""
    if not need:
        return math.inf
    total, costs = 0, []
    for bundle in bundles:
        left = {name: amount - (taken or {}).get(name, 0) for name, amount in bundle.items()}
        total += _count(bundle, need)
        if min(left.values()) >= 0:
            costs.append(_count(bundle, need) - _count(left, need))
    return total - min(costs, default=0)


def _count(bundle: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(int(bundle.get(name, 0) / amount + 1e-6) for name, amount in need.items())


def _own_resources(group: PlacementGroup) -> Dict[str, float]:
    """What this process holds of the group."""
    current = get_current_placement_group()
    if current is None or current.id != group.id:
        return {}
    return ray.get_runtime_context().get_assigned_resources()


def _free(group: PlacementGroup) -> List[Dict[str, float]]:
    """What is free in each bundle, under the names that Ray gives to resources of groups."""
    free = ray.available_resources()
    return [{name: free.get(f"{name}_group_{index}_{group.id.hex()}", 0.0) for name in bundle}
            for index, bundle in enumerate(group.bundle_specs)]


def _actor_class() -> Any:
    return ray.remote(BaseHorovodWorker)
