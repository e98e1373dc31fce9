"""Where an elastic job may run: finding hosts, and remembering the bad ones.

For programs that start workers themselves.  horovodrun does the same in C.

Imported by: horovod.ray, horovod.runner; programs written for Horovod 0.28.
"""
import abc
import contextlib
import os
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from typing import Dict, Iterator, List, Mapping, Optional, Sequence

from horovod.common.advice import advised
from horovod.runner.elastic.worker import HostUpdateResult

SCRIPT_LIMIT_S = 10.0           # a script that hangs has failed


class HostDiscovery(abc.ABC):
    """Finds the hosts of a job, again and again."""

    @abc.abstractmethod
    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        """Slots by host name."""


class HostDiscoveryScript(HostDiscovery):
    """Hosts that a command prints, a line ``name:slots`` or ``name`` each."""

    def __init__(self, discovery_script: str, slots: Optional[int]) -> None:
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        """RuntimeError: the command failed, or what it printed is not understood."""
        try:
            done = subprocess.run(self._discovery_script, shell=True, text=True, check=False,
                                  stdout=subprocess.PIPE, timeout=SCRIPT_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RuntimeError(advised(
                f"host discovery script {self._discovery_script!r} did not end "
                f"within {SCRIPT_LIMIT_S:g} s")) from None
        if done.returncode != 0:
            raise RuntimeError(advised(
                f"host discovery script {self._discovery_script!r} failed with "
                f"exit code {done.returncode}"))
        hosts: Dict[str, int] = {}
        for line in done.stdout.splitlines():
            if line.strip():
                self._read(line.strip(), hosts)
        return hosts

    def _read(self, line: str, hosts: Dict[str, int]) -> None:
        name, colon, slots = line.rpartition(":")
        if not colon or not slots.isdigit():
            name, slots = line, ""
        if not slots and self._default_slots is None:
            raise RuntimeError(f"host discovery: {line!r} says nothing about slots; print "
                               f"name:slots, or give --slots-per-host")
        count = int(slots) if slots else self._default_slots
        if hosts.get(name, count) != count:
            sys.stderr.write(f"horovod: host discovery lists {name} with {hosts[name]} and with "
                             f"{count} slots; the last one counts\n")
        hosts[name] = count or 0


@contextlib.contextmanager
def launcher_words(discovery: HostDiscovery) -> Iterator[List[str]]:
    """Options for horovodrun: a script is its own affair; what else there is, is asked here and
    written into a file that it reads."""
    if isinstance(discovery, HostDiscoveryScript):
        words = [f"--host-discovery-script={discovery._discovery_script}"]
        if discovery._default_slots is not None:
            words.append(f"--slots-per-host={discovery._default_slots}")
        yield words
        return
    with tempfile.TemporaryDirectory(prefix="horovod-hosts-") as folder:
        over = threading.Event()
        _write_hosts(discovery, folder)
        thread = threading.Thread(target=_keep_hosts, args=(discovery, folder, over))
        thread.start()
        try:
            yield [f"--host-discovery-script=cat {shlex.quote(folder)}/hosts"]
        finally:
            over.set()
            thread.join()


def _write_hosts(discovery: HostDiscovery, folder: str) -> None:
    new = os.path.join(folder, "new")
    with open(new, "w") as file:
        for name, slots in discovery.find_available_hosts_and_slots().items():
            file.write(f"{name}:{slots}\n")
    os.replace(new, os.path.join(folder, "hosts"))


def _keep_hosts(discovery: HostDiscovery, folder: str, over: threading.Event) -> None:
    from horovod.runner.elastic import driver
    while not over.wait(driver.DISCOVER_HOSTS_FREQUENCY_SECS):
        try:
            _write_hosts(discovery, folder)
        except Exception as e:
            sys.stderr.write(f"horovod: host discovery failed, the hosts of before are kept: {e}\n")


class FixedHosts(HostDiscovery):
    """Hosts that the program sets."""

    def __init__(self, available_hosts: Mapping[str, int]) -> None:
        self._available_hosts = dict(available_hosts)

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        return dict(self._available_hosts)

    def set(self, available_hosts: Mapping[str, int]) -> None:
        self._available_hosts = dict(available_hosts)


class DiscoveredHosts:
    """The hosts of one moment: never changes."""

    def __init__(self, host_slots: Mapping[str, int], order: Sequence[str]) -> None:
        self._slots = dict(host_slots)
        self._order = list(order)

    @property
    def host_slots(self) -> Dict[str, int]:
        return dict(self._slots)

    @property
    def available_hosts(self) -> set:
        return set(self._order)

    @property
    def host_assignment_order(self) -> List[str]:
        """The longest known first."""
        return list(self._order)

    def get_slots(self, host: str) -> int:
        return self._slots.get(host, 0)

    def count_available_slots(self) -> int:
        return sum(self._slots[host] for host in self._order)


class _Blacklist:
    """Hosts that have failed, and until when they are not to be used."""

    def __init__(self, cooldown_range: Optional[Sequence[int]]) -> None:
        if cooldown_range is not None:
            low, high = cooldown_range
            if not 1 <= low <= high <= 3600:
                raise ValueError(f"cooldown range {low} {high}: two numbers of seconds are "
                                 f"needed, 1 to 3600, the lower one first")
        self._range = cooldown_range
        self._until: Dict[str, float] = {}
        self._times: Dict[str, int] = {}

    def add(self, host: str) -> None:
        if host in self:
            return
        count = self._times[host] = self._times.get(host, 0) + 1
        self._until[host] = float("inf") if self._range is None else \
            time.monotonic() + self.delay(count)

    def delay(self, count: int) -> float:
        """Seconds of the count-th blacklisting: doubled each time, and some chance, so that
        hosts do not come back all at once."""
        assert self._range is not None
        low, high = self._range
        return max(low, min(high, low * 2.0 ** count + random.random() * low))

    def __contains__(self, host: str) -> bool:
        return self._until.get(host, 0.0) > time.monotonic()


class HostManager:
    """Keeps the hosts of a job in order: the longest known first, without the bad ones."""

    def __init__(self, discovery: HostDiscovery,
                 cooldown_range: Optional[Sequence[int]] = None) -> None:
        self._discovery = discovery
        self._lock = threading.Lock()
        self._blacklist = _Blacklist(cooldown_range)
        self._current = DiscoveredHosts({}, [])

    def update_available_hosts(self) -> HostUpdateResult:
        """Looks for hosts; how they have changed."""
        found = self._discovery.find_available_hosts_and_slots()
        with self._lock:
            before = self._current
            available = [host for host in found if host not in self._blacklist]
            order = self.order_available_hosts(available, before.host_assignment_order)
            self._current = DiscoveredHosts(found, order)
            return self._compare(before, self._current)

    @staticmethod
    def _compare(before: DiscoveredHosts, now: DiscoveredHosts) -> HostUpdateResult:
        result = HostUpdateResult.no_update
        for host in before.available_hosts | now.available_hosts:
            had = before.get_slots(host) if host in before.available_hosts else 0
            has = now.get_slots(host) if host in now.available_hosts else 0
            if has > had:
                result |= HostUpdateResult.added
            elif has < had:
                result |= HostUpdateResult.removed
        return result

    @property
    def current_hosts(self) -> DiscoveredHosts:
        return self._current

    def blacklist(self, host: str) -> None:
        """Leaves the host out: for ever, or for the time of the cooldown range."""
        with self._lock:
            self._blacklist.add(host)
            order = [h for h in self._current.host_assignment_order if h != host]
            self._current = DiscoveredHosts(self._current.host_slots, order)

    def is_blacklisted(self, host: str) -> bool:
        return host in self._blacklist

    @staticmethod
    def order_available_hosts(available_hosts: Sequence[str],
                              prev_order: Sequence[str]) -> List[str]:
        """Those known before in their order, then the new ones as they were found."""
        known = [host for host in prev_order if host in available_hosts]
        new = list(available_hosts) if not isinstance(available_hosts, (set, frozenset)) \
            else sorted(available_hosts)
        return known + [host for host in new if host not in known]
