"""Who this process is, in the words of Lightning."""
import os
import socket
from typing import Any, Tuple

import horovod.torch as hvd


class Environment:
    """A ClusterEnvironment whose answers come from Horovod.

    It also serves other strategies under horovodrun, which then find each other by it:
    ``Trainer(strategy="ddp", plugins=[HorovodEnvironment()])``.  The ranks agree on
    the address of rank 0 when the first of ``main_address`` and ``main_port`` is asked
    for, so all of them have to ask.
    """

    def __init__(self) -> None:
        hvd.init()
        self._main: Any = None

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return self._agreed()[0]

    @property
    def main_port(self) -> int:
        return self._agreed()[1]

    @staticmethod
    def detect() -> bool:
        return "HOROVOD_RANK" in os.environ

    def world_size(self) -> int:
        return hvd.size()

    def set_world_size(self, size: int) -> None:
        """Nothing to set: the launcher has decided."""

    def global_rank(self) -> int:
        return hvd.rank()

    def set_global_rank(self, rank: int) -> None:
        """Nothing to set: the launcher has decided."""

    def local_rank(self) -> int:
        return hvd.local_rank()

    def node_rank(self) -> int:
        return hvd.cross_rank()

    def _agreed(self) -> Tuple[str, int]:
        if self._main is None:
            mine = _place() if hvd.rank() == 0 else None
            self._main = hvd.broadcast_object(mine, 0, "lightning.main_address")
        return self._main


def _place() -> Tuple[str, int]:
    """An address of this host that the others reach, and a port that is free now."""
    servers = [a for a in os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "").split(",") if a]
    address = "127.0.0.1"
    if hvd.local_size() < hvd.size():
        far = [a for a in servers if not a.startswith("127.")]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.connect((far[0] if far else socket.gethostname(), 9))     # sends nothing
            address = s.getsockname()[0]
    with socket.socket() as s:
        s.bind(("", 0))
        return address, s.getsockname()[1]
