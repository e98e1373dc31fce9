"""A name for this machine and its namespaces, so that containers on one host differ.

Imported by: horovod.spark; programs written for Horovod 0.28.
"""
import hashlib
import os
import socket
from typing import Any


def _namespaces() -> str:
    try:
        return " ".join(os.readlink(f"/proc/self/ns/{name}")
                        for name in sorted(os.listdir("/proc/self/ns")))
    except OSError:
        return ""


def host_hash(salt: Any = None) -> str:
    """Short host name, a dash, and a hash of host name, namespaces and salt."""
    name = socket.gethostname()
    text = f"{name}-{_namespaces()}" + (f"-{salt}" if salt is not None else "")
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    return f"{name.split('.')[0]}-{digest}"
