"""Addresses of this host.

Imported by: horovod.ray, horovod.spark; programs written for Horovod 0.28.
"""
from typing import Iterable, Optional

from horovod import _core


def get_driver_ip(nics: Optional[Iterable[str]] = None) -> str:
    """The IPv4 address under which this host is reached through one of the interfaces; of
    all interfaces, a loopback one comes last."""
    wanted = set(nics or ())
    found = [address for name, address in _core.interfaces()
             if ":" not in address and (not wanted or name in wanted)]
    if not found:
        raise RuntimeError(f"Horovod was unable to find an address of the interfaces "
                           f"{sorted(wanted) or 'of this host'}")
    return min(found, key=lambda address: address.startswith("127."))


def interface_of(address: str) -> Optional[str]:
    """The interface of this host that has the address."""
    return next((name for name, own in _core.interfaces() if own == address), None)
