"""Hosts, slots and ranks as data.

Imported by: horovod.ray, horovod.runner, horovod.spark; programs written for Horovod 0.28.
"""
import collections
import dataclasses
import re
from typing import Iterable, Optional, Sequence

from horovod.common.advice import advised

_ITEM = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+)):(\d+)")


class HostParseException(Exception):
    """A host string that is not understood."""


@dataclasses.dataclass
class HostInfo:
    """A host and how many processes it takes."""
    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> "HostInfo":
        """From ``name:slots``."""
        match = _ITEM.fullmatch(host_string.strip())
        if match is None:
            raise HostParseException(advised(
                f"Invalid host input: {host_string.strip()!r}; "
                f"write name:slots, such as localhost:2"))
        return HostInfo(match[1] or match[2], int(match[3]))


@dataclasses.dataclass
class SlotInfo:
    """The place of one rank."""
    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: Optional[int] = None
    local_size: Optional[int] = None
    cross_size: Optional[int] = None
    # Of a worker of an elastic job: the variables that its process needs.
    env: Optional[dict] = dataclasses.field(default=None, compare=False, repr=False)

    def to_response_string(self) -> str:
        """``rank,size,local_rank,local_size,cross_rank,cross_size``"""
        return ",".join(str(v) for v in (self.rank, self.size, self.local_rank, self.local_size,
                                         self.cross_rank, self.cross_size))


INVALID_SLOT_INFO = SlotInfo(hostname="", rank=-1, local_rank=-1, cross_rank=-1, size=-1,
                             local_size=-1, cross_size=-1)


def _merged(hosts: Iterable[HostInfo]) -> list[HostInfo]:
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.hostname] = slots.get(host.hostname, 0) + host.slots
    return [HostInfo(name, count) for name, count in slots.items()]


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """The hosts of ``h1:s1,h2:s2``; a name that occurs again adds its slots."""
    return _merged(HostInfo.from_string(item) for item in hosts_string.split(","))


def parse_hosts_and_slots(hosts: str) -> tuple[list[str], dict[str, int]]:
    """Names in order, and slots by name."""
    parsed = parse_hosts(hosts)
    return [h.hostname for h in parsed], {h.hostname: h.slots for h in parsed}


def parse_host_files(filename: str) -> str:
    """A hostfile (``name slots=N`` a line) as a host string."""
    hosts = []
    with open(filename) as file:
        for number, line in enumerate(file, 1):
            line = re.sub(r"\s*=\s*", "=", line.split("#")[0]).strip()
            if not line:
                continue
            name, *keys = line.split()
            slots = dict(k.split("=", 1) for k in keys if "=" in k).get("slots", "1")
            if not slots.isdigit() or not re.fullmatch(r"[\w.:%\[\]-]+", name):
                raise HostParseException(f"Invalid host input: {filename} line {number}: "
                                         f"{line!r}")
            hosts.append(f"{name}:{slots}")
    return ",".join(hosts)


def get_host_assignments(hosts: Sequence[HostInfo], min_num_proc: int,
                         max_num_proc: Optional[int] = None) -> list[SlotInfo]:
    """Ranks for hosts in their order, each filled before the next, up to max_num_proc.
    ValueError: fewer than min_num_proc slots."""
    slots: list[SlotInfo] = []
    for host in hosts:
        room = host.slots if max_num_proc is None else min(host.slots, max_num_proc - len(slots))
        slots += [SlotInfo(host.hostname, len(slots) + i, i, -1, local_size=room)
                  for i in range(room)]
    if len(slots) < min_num_proc:
        raise ValueError(advised(
            f"Requested more processes ({min_num_proc}) than there are available "
            f"slots ({len(slots)})"))
    cross: collections.Counter = collections.Counter()
    for slot in slots:
        slot.cross_rank = cross[slot.local_rank]
        cross[slot.local_rank] += 1
    for slot in slots:
        slot.size, slot.cross_size = len(slots), cross[slot.local_rank]
    return slots
