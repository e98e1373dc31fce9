"""Where processes below this one ask for the job key, when no descriptor reaches them: an
abstract unix socket, as src/rendezvous/key_descriptor.c expects it.  Nothing is in the file
system, and a stranger who asks is told nothing.

Imported by: horovod.runner.gloo_run, horovod.spark.
"""
import contextlib
import os
import secrets
import socket
import struct
import threading
from typing import Iterator

PREFIX = b"HvdKey1\n"                   # of what a desk says, and of a key's memfd


class KeyDesk:
    """``name`` is for HOROVOD_KEY_SOCKET; ``answer`` when the socket is readable."""

    def __init__(self, key: bytes) -> None:
        name = f"horovod-{secrets.token_hex(16)}"
        self._content = PREFIX + key
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind("\0" + name)
        self._socket.listen(16)
        self._socket.setblocking(False)
        self.name = "@" + name

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self, ancestor: int) -> None:
        """To a process of this user that is ``ancestor`` or below it."""
        try:
            peer, _ = self._socket.accept()
        except OSError:
            return
        with peer:
            size = struct.calcsize("3i")
            pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET,
                                                              socket.SO_PEERCRED, size))
            if uid == os.geteuid() and _descends(pid, ancestor):
                peer.send(self._content)

    def close(self) -> None:
        self._socket.close()


def _descends(pid: int, ancestor: int) -> bool:
    """Whether a process is the other one, or below it."""
    try:
        while pid > 1 and pid != ancestor:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return pid == ancestor


@contextlib.contextmanager
def served(key: bytes) -> Iterator[str]:
    """A desk with a thread of its own, for the processes below this one; its name."""
    desk = KeyDesk(key)
    desk._socket.settimeout(None)
    stopping = False

    def serve() -> None:
        while not stopping:
            desk.answer(os.getpid())

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield desk.name
    finally:
        stopping = True
        desk._socket.shutdown(socket.SHUT_RDWR)         # ends accept()
        thread.join()
        desk.close()
