"""The rendezvous server.  Names of old; no HTTP is spoken: workers prove the job key and
get the complete table over one connection each.

Imported by: programs written for Horovod 0.28 only.
"""
import threading
from typing import Any, Optional, Sequence

from horovod import _core


class RendezvousServer:
    """Serves the rendezvous of the workers of a plan."""

    def __init__(self, verbose: int = 0, key: Optional[bytes] = None, job_id: str = "",
                 addrs: Sequence[str] = ("127.0.0.1",), timeout: float = 30.0) -> None:
        self.key = key if key is not None else _core.generate_key()
        self.job_id = job_id
        self._addrs = list(addrs)
        self._timeout = timeout
        self._server: Optional[_core.Server] = None

    def start(self, handler: Any = None) -> int:
        """Listens and returns the port.  Workers wait until ``init`` gives the plan."""
        self._server = _core.Server(self.key, self.job_id, self._addrs, 0, 1, self._timeout)
        return self._server.port

    def init(self, host_alloc_plan: Sequence[Any]) -> None:
        """Begins a generation of as many workers as the plan has slots."""
        if self._server is None:
            raise RuntimeError("the rendezvous server was not started")
        self._server.next_generation(len(host_alloc_plan))

    def stop(self) -> None:
        """Closes the port and all connections."""
        if self._server is not None:
            self._server.close()
        self._server = None


class KVStoreServer:
    """Values by scope and key, within this process: nothing is served to a network."""

    def __init__(self, verbose: int = 0) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], bytes] = {}

    def put(self, scope: str, key: str, value: bytes) -> None:
        """Stores a value."""
        with self._lock:
            self._values[scope, key] = value

    def get(self, scope: str, key: str) -> Optional[bytes]:
        """The value, or None."""
        with self._lock:
            return self._values.get((scope, key))
