"""Network interfaces of Ray nodes, and maps that wait."""
import socket
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from horovod import _core
from horovod.ray import _actor
from horovod.runner.common.util.env import IDENTITY

LOOPBACK = "127.0.0.1"


def user_variables(environment: Dict[str, str]) -> Dict[str, str]:
    """The ``HOROVOD_*`` variables that tune a job, without those that identify a process."""
    return {name: value for name, value in environment.items()
            if name.startswith("HOROVOD_") and name not in IDENTITY}


def map_blocking(fn: Callable[[Any], Any], collection: Iterable[Any]) -> List[Any]:
    """``ray.get`` of ``fn(item)`` for all items, called for all before the first wait."""
    return ray.get([fn(item) for item in collection])


def nics_to_env_var(nics: Iterable[str]) -> Dict[str, str]:
    """The variables that restrict a job to interfaces; none when there are none."""
    names = list(nics)
    if not names:
        return {}
    return {"HOROVOD_GLOO_IFACE": names[0], "NCCL_SOCKET_IFNAME": ",".join(names)}


def choose_nics(facts: Sequence[Dict[str, Any]], nics: Optional[Iterable[str]]) -> List[str]:
    """The interfaces for ranks whose ``_actor.facts`` are given.

    The user's, else the loopback if all are on one machine, else the one that has the
    address Ray knows the node by, if its name is the same everywhere.  Empty: there is no
    such name; each rank may be given its own interface, or none.
    """
    if nics:
        return sorted(nics)
    if len({f["node_ip"] for f in facts}) == 1:
        return loopback_nics(None)
    names = {f["interface"] for f in facts}
    return [names.pop()] if len(names) == 1 and None not in names else []


def loopback_nics(nics: Optional[Iterable[str]]) -> List[str]:
    """The interfaces of this host that have 127.0.0.1, of the given ones."""
    found = [name for name, address in _core.interfaces() if address == LOOPBACK]
    left = [name for name in found if not nics or name in nics]
    if not left:
        raise ValueError(f"none of the interfaces {sorted(nics or [])} has {LOOPBACK}, which "
                         f"is used when all workers are on one host; {found} would do")
    return left


def detect_nics(settings: Any, all_host_names: Sequence[str],
                node_workers: Optional[Sequence[Any]] = None) -> Iterable[str]:
    """Names of the interfaces for a job on these hosts.

    Nothing is probed: on this machine it is the loopback, else ``settings.nics``, else the
    interface that has the address Ray knows each node by, if it has the same name on all
    nodes; else none, and the core uses what it can reach.
    """
    if all(_is_here(name) for name in all_host_names):
        return loopback_nics(settings.nics)
    if settings.nics:
        return settings.nics
    if node_workers is not None and len(node_workers) != len(all_host_names):
        raise ValueError(f"{len(node_workers)} node workers for {len(all_host_names)} hosts "
                         f"({', '.join(sorted(all_host_names))})")
    limit = settings.start_timeout
    probes = [_probe(name) for name in all_host_names] if node_workers is None else []
    try:
        names = set(ray.get([w.execute.remote(_interface) for w in node_workers or probes],
                            timeout=limit.remaining()))
    finally:
        for probe in probes:
            ray.kill(probe)
    return [names.pop()] if len(names) == 1 and None not in names else []


def _interface(_: Any) -> Optional[str]:
    return _actor.facts()["interface"]


def _is_here(name: str) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError:
        return False
    own = {address for _, address in _core.interfaces()}
    return all(address in own or address.startswith("127.") for address in found)


class _Probe:
    """An actor that takes no CPU."""

    def execute(self, func: Callable[[Any], Any]) -> Any:
        return func(None)


def _probe(name: str) -> Any:
    """A probe on the node of that name; nodes are told apart by their ids."""
    options: Dict[str, Any] = {"num_cpus": 0}
    for node in ray.nodes():
        if node["Alive"] and name in (node["NodeManagerHostname"], node["NodeName"],
                                      node["NodeManagerAddress"]):
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                node["NodeID"], soft=False)
            break
    else:
        options["resources"] = {f"node:{name}": 0.001}
    return ray.remote(_Probe).options(**options).remote()
