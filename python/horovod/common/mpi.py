"""Jobs that MPI started: the communicator carries what a launcher would put into the
environment (address, port, key); the collectives are ours all the same."""
import os
import socket
from typing import Any

from horovod import _core


def adopt(comm: Any) -> None:
    """Sets the variables from which ``_core.init`` forms the job of this communicator.

    Collective over the communicator.  Nothing happens while a job is up.
    """
    if _core.is_initialized():
        return
    rank, size = comm.Get_rank(), comm.Get_size()
    offer = None
    if rank == 0:
        offer = (_own_address(), _free_port(), _core.generate_key().hex())
    address, port, key = comm.bcast(offer, root=0)
    for name in ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "KEY_FD", "KEY_SOCKET",
                 "KEY_FILE"):
        os.environ.pop("HOROVOD_" + name, None)
    os.environ.update({
        "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size), "HOROVOD_KEY": key,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_RENDEZVOUS_SERVE": "1" if rank == 0 else "0"})


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"
