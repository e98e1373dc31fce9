"""Who is where, and the rendezvous of a job on Ray.

1. Ranks are grouped by Ray node id, never by host name: several nodes may share a name, an
   address or a machine.
2. The rendezvous is the C server; it runs in threads of its own, needs no main thread and
   never keeps a process from ending.
3. Whoever calls ``establish_rendezvous`` again starts a new generation: workers of the one
   before are refused.
"""
import functools
import hmac
import ipaddress
import logging
import os
import uuid
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union

import ray.util

from horovod import _core

_HOST_PLAN = ("HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE", "HOROVOD_LOCAL_RANK",
              "HOROVOD_LOCAL_SIZE")


def job_key(key: Union[None, bytes, str], job_id: str) -> bytes:
    """The key of one job: settings with their key may serve many, one after the other or
    at once, whose workers must not take each other for their own."""
    if key is None:
        return _core.generate_key()
    if isinstance(key, str):
        key = key.encode()
    return hmac.digest(key, job_id.encode(), "sha256")


class Coordinator:
    """Collects where each rank is, and serves their rendezvous.

    ``settings`` needs ``key`` and ``start_timeout`` only, so that Ray's own configuration
    serves as well.  ``generation`` is the number of the first generation.
    """

    def __init__(self, settings: Any, generation: int = 0) -> None:
        self.settings = settings
        self.node_id_by_rank: Dict[str, List[int]] = {}
        self.rendezvous: Optional[_core.Server] = None
        self.global_rendezv_port: Optional[int] = None
        self.nics: Any = None
        self.job_id = uuid.uuid4().hex
        self.generation = generation
        self.key = job_key(getattr(settings, "key", None), self.job_id)
        self._hostnames: Set[str] = set()

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError("a Coordinator holds a server and the job key; it cannot be pickled")

    @property
    def world_size(self) -> int:
        return sum(len(ranks) for ranks in self.node_id_by_rank.values())

    @property
    def hostnames(self) -> Set[str]:
        return self._hostnames

    @property
    def node_id_string(self) -> str:
        """``id:count,id:count``"""
        return ",".join(f"{node}:{len(ranks)}" for node, ranks in self.node_id_by_rank.items())

    def register(self, hostname: str, node_id: str, world_rank: int) -> None:
        """Says that a rank is on a node; in rank order."""
        self._hostnames.add(hostname)
        self.node_id_by_rank.setdefault(node_id, []).append(world_rank)

    def finalize_registration(self) -> Dict[int, Dict[str, int]]:
        """By rank: its variables of the topology."""
        result = {}
        groups = list(self.node_id_by_rank.values())
        for index, ranks in enumerate(groups):
            for local_rank, world_rank in enumerate(ranks):
                having = [i for i, g in enumerate(groups) if len(g) > local_rank]
                result[world_rank] = dict(zip(_HOST_PLAN, (
                    having.index(index), len(having), local_rank, len(ranks))))
        return result

    def serve(self) -> Dict[str, str]:
        """Starts the rendezvous, or its next generation; the variables of the workers.

        The key is not among them: hand ``key`` over as an argument, to
        ``horovod.ray._actor.setup``.
        """
        if self.rendezvous is None:
            self._start()
        else:
            self.rendezvous.next_generation(self.world_size)
            self.generation += 1
        return {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self._address,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(self.global_rendezv_port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_JOB_ID": self.job_id,
            "HOROVOD_GENERATION": str(self.generation),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": self._limit(),
        }

    def establish_rendezvous(self) -> Dict[str, str]:
        """``serve``, with the key: for callers that can only set variables (Ray Train V1).
        The core takes ``HOROVOD_KEY`` out of the environment as soon as it is read."""
        return {**self.serve(), "HOROVOD_KEY": self.key.hex()}

    def abort(self, why: str, rank: int = -1) -> None:
        """Ends the job for all its workers, also those that wait for others to come."""
        if self.rendezvous is not None:
            self.rendezvous.abort(rank, why)

    def status(self) -> str:
        """A line per rank: what the server knows of it."""
        return self.rendezvous.status() if self.rendezvous is not None else ""

    def shutdown(self) -> None:
        """Stops the server.  Safe to call again."""
        server, self.rendezvous = self.rendezvous, None
        if server is not None:
            server.close()

    def _start(self) -> None:
        self._address, self.rendezvous = listening(self._server)
        self.global_rendezv_port = self.rendezvous.port

    def _server(self, address: str) -> _core.Server:
        # No limit of its own: the workers bring theirs.
        return _core.Server(self.key, self.job_id, [address], 0, self.world_size, timeout=0.0,
                            generation=self.generation)

    def _limit(self) -> str:
        given = os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS")
        if given:
            return given
        return str(max(1, round(self.settings.start_timeout.remaining())))


def listening(make: Callable[[str], Any]) -> Tuple[str, Any]:
    """The address that workers reach this node by, and ``make(address)``, a server there."""
    _warn_of_open_ray()
    address = ray.util.get_node_ip_address()
    try:
        return address, make(address)
    except OSError:                     # the node is known by an address it does not have
        return address, make(_any_address(address))


@functools.lru_cache(maxsize=None)
def _warn_of_open_ray() -> None:
    """Once: the key of a job is no safer than Ray, which carries it."""
    mode = getattr(ray._raylet, "get_authentication_mode", None)
    known = getattr(ray._raylet, "AuthenticationMode", None)
    if mode is None or known is None:   # a Ray that has no authentication by token
        return
    if mode() == known.DISABLED:
        logging.getLogger("horovod.ray").warning(
            "token authentication of Ray is off: whoever reaches its ports can run code in "
            "this cluster and read the keys of jobs; see RAY_AUTH_MODE and `ray get-auth-token`")


def _any_address(like: str) -> str:
    return "0.0.0.0" if ipaddress.ip_address(like).version == 4 else "::"
