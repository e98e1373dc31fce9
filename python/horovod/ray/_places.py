"""Where the workers of an elastic job can be, as Ray gives and takes it.

``Places`` says which hosts there are, with how many slots, and how an actor gets to a slot.

1. ``ReservedPlaces``, for the nodes of the cluster: every slot is a placement group of one
   bundle.  Ray never gives what others hold; what is not there yet is a wish that the
   autoscaler sees.  A slot stays reserved while workers in it die and are started again.
2. There are as many wishes as ``max_workers`` says.  Without it: ``min_workers``, and beyond
   them only what is free at the time, so that nobody's autoscaler is driven to its limit.
3. A host is a Ray node, not an address: nodes of one machine share theirs.  The first node of
   an address has it as its name, the next ones ``address-2``...; names are never used again,
   so that a node that comes back is a new host.
4. Slots of a host have fixed numbers.  One whose group was taken away is a hole: whoever is to
   start there waits until Ray has given another.
5. A node that is being drained is no host any more; its slots are wished for elsewhere.
6. ``ListedPlaces``, for a discovery of the user: hosts are what it says, found by the
   resource ``node:<name>``.
"""
import logging
import threading
import time
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horovod.runner.common.util.timeout import TimeoutException

logger = logging.getLogger("horovod.ray")

POLL_S = 0.1                    # while something is expected soon
WISH_S = 0.25                   # while a wish is open: a poll takes some milliseconds
SETTLE_S = 5.0                  # for what is free to become ours, beyond min_workers
PROBE_S = 5.0                   # rule 2: a wish beyond min_workers, and the pause after it

LEAST = 0.01                    # of a resource

Hosts = List[Tuple[str, int]]


class NoPlaces(TimeoutException, TimeoutError):
    """The cluster did not have room for ``min_workers`` in time."""


class Places:
    """What a job asks."""

    def poll(self) -> Hosts:
        """The hosts that can be used now, the longest known first."""
        raise NotImplementedError

    def is_settled(self) -> bool:
        """Whether nothing more is expected within moments."""
        return True

    def pause(self) -> float:
        """Until the next poll, at most."""
        return float("inf")

    def options(self, host: str, slot: int) -> Optional[Dict[str, Any]]:
        """How an actor gets there; None: not at present."""
        raise NotImplementedError

    def place(self, host: str, slot: int) -> Optional[str]:
        """What is in that slot now: another text when it is another place."""
        return host

    def node_of(self, host: str) -> Optional[str]:
        """The node an actor there must be on; None: any."""
        return None

    def describe(self) -> str:
        """What was asked for, and what there is."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives everything back."""

    def wait(self, count: int, limit_s: float) -> None:
        """Until there are so many slots; NoPlaces otherwise."""
        end = time.monotonic() + limit_s
        while True:
            found = sum(slots for _, slots in self.poll())
            if found >= count:
                break
            if time.monotonic() >= end:
                raise NoPlaces(f"only {found} of min_workers={count} places were there within "
                               f"elastic_timeout={limit_s:g} s: {self.describe()}")
            time.sleep(POLL_S)
        end = time.monotonic() + SETTLE_S
        while not self.is_settled() and time.monotonic() < end:
            time.sleep(POLL_S)
            self.poll()


class ListedPlaces(Places):
    """Rule 6."""

    def __init__(self, discovery: Any) -> None:
        self._discovery = discovery
        self._found: Mapping[str, int] = {}
        self._unknown: Set[str] = set()

    def poll(self) -> Hosts:
        self._found = self._discovery.find_available_hosts_and_slots()
        known = ray.cluster_resources()
        unknown = {host for host in self._found if f"node:{host}" not in known}
        if unknown - self._unknown:
            logger.warning("the discovery lists %s, which Ray does not have: no node has the "
                           "resource node:%s; waiting for it",
                           ", ".join(sorted(unknown)), sorted(unknown)[0])
        self._unknown = unknown
        return [(host, slots) for host, slots in self._found.items()
                if slots > 0 and host not in unknown]

    def options(self, host: str, slot: int) -> Dict[str, Any]:
        return {"resources": {f"node:{host}": 0.01}}

    def describe(self) -> str:
        names = sorted(name for name in ray.cluster_resources() if name.startswith("node:"))
        return f"the discovery found {dict(self._found)}; Ray has {', '.join(names)}"


class _Lot:
    """One slot: a group, and the node it is on."""

    def __init__(self, group: PlacementGroup, is_probe: bool) -> None:
        self.group = group
        self.id = group.id.hex()
        self.is_probe = is_probe        # beyond min_workers without a max_workers
        self.since = time.monotonic()
        self.node: Optional[str] = None


class ReservedPlaces(Places):
    """Rules 1 to 5."""

    def __init__(self, resources: Mapping[str, float], min_workers: int,
                 max_workers: Optional[int]) -> None:
        self._resources = dict(resources)
        self._min = min_workers
        self._max = max_workers
        self._lots: List[_Lot] = []
        self._slots: Dict[str, List[Optional[_Lot]]] = {}      # by node id; None: a hole
        self._names: Dict[str, str] = {}                        # by node id
        self._addresses: Dict[str, int] = {}                    # how many nodes had it
        self._draining: Set[str] = set()
        self._no_probe_before = 0.0
        self._is_closed = False
        self._lock = threading.RLock()          # polled by one thread, used by another

    # -- looking --------------------------------------------------------------------

    def poll(self) -> Hosts:
        with self._lock:
            if self._is_closed:
                return []
            alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
            self._draining = _draining_nodes() & set(alive)
            self._look(set(alive))
            self._wish()
            for node in self._slots:
                self._name(node, alive)
            return [(self._names[node], len(lots)) for node, lots in self._slots.items()
                    if node not in self._draining]

    def _look(self, alive: Set[str]) -> None:
        """Which lots are where."""
        table = ray.util.placement_group_table()
        for lot in list(self._lots):
            info = table.get(lot.id, {"state": "REMOVED"})
            node = None
            if info["state"] == "CREATED":
                node = next(iter(info["bundles_to_node_id"].values()), None)
            elif info["state"] == "REMOVED":
                self._lots.remove(lot)          # by somebody else
            if node != lot.node:
                self._move(lot, node if node in alive else None)
        for node in [node for node in self._slots if node not in alive]:
            del self._slots[node]

    def _move(self, lot: _Lot, node: Optional[str]) -> None:
        if lot.node is not None and lot.node in self._slots:
            slots = self._slots[lot.node]
            slots[slots.index(lot)] = None      # rule 4
        lot.node = node
        lot.since = time.monotonic()
        if node is None:
            return
        slots = self._slots.setdefault(node, [])
        if None in slots:
            slots[slots.index(None)] = lot
        else:
            slots.append(lot)

    def _name(self, node: str, alive: Mapping[str, Any]) -> None:
        """Rule 3."""
        if node not in self._names:
            address = alive[node]["NodeManagerAddress"]
            count = self._addresses[address] = self._addresses.get(address, 0) + 1
            self._names[node] = address if count == 1 else f"{address}-{count}"

    # -- asking ---------------------------------------------------------------------

    def _wish(self) -> None:
        """Rules 1, 2 and 5."""
        self._withdraw_probes()
        usable = [lot for lot in self._lots if lot.node not in self._draining]
        pending = [lot for lot in usable if lot.node is None]
        wanted = self._max or self._min
        for _ in range(wanted - len(usable)):
            self._ask(is_probe=False)
        if self._max is not None:               # some came back from nodes that are gone
            for lot in pending[:max(0, len(usable) - wanted)]:
                self._drop(lot)
        if self._max is None and time.monotonic() >= self._no_probe_before and \
                all(lot.node is not None for lot in self._lots):
            for _ in range(self._free()):
                self._ask(is_probe=True)

    def _withdraw_probes(self) -> None:
        late = [lot for lot in self._lots if lot.is_probe and lot.node is None and
                time.monotonic() - lot.since > PROBE_S]
        for lot in late:
            self._drop(lot)
        if late:
            self._no_probe_before = time.monotonic() + PROBE_S

    def _ask(self, is_probe: bool) -> None:
        group = ray.util.placement_group([self._resources], strategy="PACK")
        self._lots.append(_Lot(group, is_probe))

    def _drop(self, lot: _Lot) -> None:
        self._lots.remove(lot)
        ray.util.remove_placement_group(lot.group)

    def _free(self) -> int:
        """How many lots fit into what nobody holds, over all nodes: an upper limit."""
        if max(self._resources.values()) < LEAST:
            return 0                    # workers that take nothing: what fits says nothing
        free = ray.available_resources()
        return int(min(free.get(name, 0.0) / amount + 1e-6
                       for name, amount in self._resources.items()))

    def is_settled(self) -> bool:
        return all(lot.node is not None for lot in self._lots) or self._free() == 0

    def pause(self) -> float:
        with self._lock:
            is_open = any(lot.node is None for lot in self._lots)
        return WISH_S if is_open else float("inf")

    # -- what a job uses ------------------------------------------------------------

    def _lot(self, host: str, slot: int) -> Optional[_Lot]:
        with self._lock:
            lots = self._slots.get(self.node_of(host) or "", [])
            return lots[slot] if slot < len(lots) else None

    def place(self, host: str, slot: int) -> Optional[str]:
        lot = self._lot(host, slot)
        return lot.id if lot is not None else None

    def options(self, host: str, slot: int) -> Optional[Dict[str, Any]]:
        lot = self._lot(host, slot)
        if lot is None:
            return None
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(
            lot.group, placement_group_bundle_index=0,
            placement_group_capture_child_tasks=False)}

    def node_of(self, host: str) -> Optional[str]:
        with self._lock:
            return next((node for node, name in self._names.items() if name == host), None)

    def describe(self) -> str:
        return (f"each needs {self._resources}; free in the cluster: "
                f"{_plain(ray.available_resources())} of {_plain(ray.cluster_resources())}. "
                f"Others may hold the rest; add nodes, ask for less (cpus_per_worker, "
                f"min_workers), or wait longer")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if ray.is_initialized():    # else everything has gone with Ray
                for lot in list(self._lots):
                    self._drop(lot)
            self._slots.clear()


def _plain(resources: Mapping[str, float]) -> Dict[str, float]:
    return {name: amount for name, amount in resources.items()
            if name in ("CPU", "GPU") or ":" not in name and "memory" not in name and
            "_group_" not in name}


def _draining_nodes() -> Set[str]:
    """Ids of nodes that are to go soon, where this Ray tells."""
    try:
        return set(ray._private.state.state.get_draining_nodes())
    except Exception:
        logger.debug("this Ray does not tell which nodes are drained", exc_info=True)
        return set()
