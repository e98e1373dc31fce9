"""The driver of an elastic job for programs that start its workers themselves: a face of the
driver in C (horovod/driver.h), which decides who belongs to the job and gives the ranks.

The variables say how often hosts are looked for and how long too few of them are waited for, in
jobs of this process: ElasticDriver, ``horovod.run``, ``gloo_run_elastic``.

Imported by: horovod.ray, horovod.runner; programs written for Horovod 0.28.
"""
import os
import select
import tempfile
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from horovod import _core
from horovod.runner.common.util.hosts import INVALID_SLOT_INFO, SlotInfo
from horovod.runner.elastic.discovery import DiscoveredHosts, HostDiscovery, HostManager

DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
ELASTIC_TIMEOUT_SECS = 600.0            # without enough slots


def timing_words() -> List[str]:
    """What the variables above say to horovodrun, where they were changed."""
    words = []
    if DISCOVER_HOSTS_FREQUENCY_SECS != 1.0:
        words.append(f"--discovery-interval={DISCOVER_HOSTS_FREQUENCY_SECS}")
    if ELASTIC_TIMEOUT_SECS != 600.0:
        words.append(f"--elastic-timeout={max(1, round(ELASTIC_TIMEOUT_SECS))}")
    return words


class Results:
    """How a job has ended: why it failed (None: it did not), and (exit code, time) of the
    workers by name, ``host[slot]``."""

    def __init__(self, error_message: Optional[str],
                 worker_results: Dict[str, Tuple[int, float]]) -> None:
        self.error_message = error_message
        self.worker_results = worker_results


class ElasticDriver:
    """Starts workers with ``create_worker_fn(slot_info, events) -> (exit code, time)``, which is
    called in a thread for each; any of the events that is set asks for the worker's end.

    ``slot_info.env`` holds the variables that its process needs, with the key of the job in the
    file that HOROVOD_KEY_FILE names; ``create_slot_env_vars`` gives them, too.  Ranks may
    change later: the workers learn them in ``hvd.init``.
    """

    def __init__(self, rendezvous: Any, discovery: HostDiscovery, min_num_proc: int,
                 max_num_proc: Optional[int], timeout: Optional[float] = None,
                 reset_limit: Optional[int] = None,
                 cooldown_range: Optional[Sequence[int]] = None, verbose: int = 0,
                 addresses: Sequence[str] = ("127.0.0.1",)) -> None:
        self._host_manager = HostManager(discovery, cooldown_range)
        self._min, self._max, self._verbose = min_num_proc, max_num_proc, verbose
        self._timeout = timeout or ELASTIC_TIMEOUT_SECS
        self._reset_limit, self._cooldown = reset_limit, cooldown_range
        self._addresses = list(addresses)
        self._lock = threading.Lock()
        self._over, self._ended = threading.Event(), threading.Event()
        self._slots: Dict[int, SlotInfo] = {}           # by worker, as told last
        self._events: Dict[int, threading.Event] = {}   # of living workers: its end is wanted
        self._results: Dict[str, Tuple[int, float]] = {}
        self._error: Optional[str] = None
        self._size = 0
        self._core: Optional[_core.Driver] = None
        self._threads: List[threading.Thread] = []

    # -- hosts --------------------------------------------------------------------------

    def wait_for_available_slots(self, min_num_proc: int, min_hosts: int = 1) -> DiscoveredHosts:
        """The hosts, as soon as they have so many slots.  RuntimeError: the first look for hosts
        failed, or the time is over."""
        end, first = time.monotonic() + self._timeout, True
        while True:
            try:
                self._host_manager.update_available_hosts()
            except Exception as e:
                if first:
                    self.stop(str(e))
                    raise RuntimeError(f"the first look for hosts failed: {e}") from e
            first, hosts = False, self._host_manager.current_hosts
            if hosts.count_available_slots() >= min_num_proc and \
                    len(hosts.available_hosts) >= min_hosts:
                return hosts
            if time.monotonic() > end or self._ended.is_set():
                self.stop("too few slots")
                raise RuntimeError(
                    f"{hosts.count_available_slots()} slots on {len(hosts.available_hosts)} "
                    f"hosts within {self._timeout:g} s, {min_num_proc} on {min_hosts} are needed")
            self._ended.wait(DISCOVER_HOSTS_FREQUENCY_SECS)

    def _discover(self, core: _core.Driver) -> None:
        while not self._ended.is_set():
            try:
                self._host_manager.update_available_hosts()
                hosts = self._host_manager.current_hosts
                core.hosts([(h, hosts.get_slots(h)) for h in hosts.host_assignment_order])
            except Exception as e:
                core.discovery_failed(str(e))
            self._ended.wait(DISCOVER_HOSTS_FREQUENCY_SECS)

    # -- life ---------------------------------------------------------------------------

    def start(self, num_proc: int, create_worker_fn: Callable) -> None:
        """Begins when the hosts have num_proc slots."""
        key = _core.generate_key()
        low, high = self._cooldown or (0, 0)
        self._core = core = _core.Driver(
            key, key[:8].hex(), self._addresses, 0, num_proc, min_np=self._min,
            max_np=self._max or 0,
            reset_limit=-1 if self._reset_limit is None else self._reset_limit,
            elastic_timeout=self._timeout, cooldown_low=low, cooldown_high=high)
        self._create = create_worker_fn
        self._folder = tempfile.TemporaryDirectory(prefix="horovod-key-")
        self._key_path = os.path.join(self._folder.name, "key")
        with open(os.open(self._key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600),
                  "w") as file:
            file.write(key.hex())
        for target in (self._discover, self._serve):
            thread = threading.Thread(target=target, args=(core,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def resume(self) -> None:
        """Nothing to do: the driver never stops by itself before the job is over."""

    def stop(self, error_message: Optional[str] = None) -> None:
        """Ends all workers."""
        with self._lock:
            self._error = self._error or error_message
            for event in self._events.values():
                event.set()
        if self._core is not None and error_message and not self._over.is_set():
            self._core.abort(error_message)
        self._over.set()
        self._ended.set()

    def finished(self) -> bool:
        return self._over.is_set()

    def get_results(self) -> Results:
        """Waits for the end of the job and of all its workers."""
        self._over.wait()
        for thread in list(self._threads):
            thread.join()
        if self._core is not None:
            self._core.close()
            self._folder.cleanup()
        return Results(self._error, dict(self._results))

    # -- actions of the driver ------------------------------------------------------------

    def _serve(self, core: _core.Driver) -> None:
        while not self._over.is_set():
            action = core.next(self._addresses[-1])
            if action is None:
                select.select([core], [], [], 0.2)
                continue
            getattr(self, "_act_" + action["kind"])(core, action)

    def _act_start(self, core: _core.Driver, action: Dict[str, Any]) -> None:
        slot = SlotInfo(action["host"], action["rank"],
                        *(int(action["env"][f"HOROVOD_{name}"]) for name in
                          ("LOCAL_RANK", "CROSS_RANK", "SIZE", "LOCAL_SIZE", "CROSS_SIZE")))
        slot.env = dict(action["env"], HOROVOD_KEY_FILE=self._key_path)
        event = threading.Event()
        with self._lock:
            self._slots[action["worker"]] = slot
            self._events[action["worker"]] = event
        thread = threading.Thread(target=self._work, args=(core, action, slot, event),
                                  daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self, core: _core.Driver, action: Dict[str, Any], slot: SlotInfo,
              event: threading.Event) -> None:
        try:
            code, when = self._create(slot, [event])
        except Exception as e:
            code, when = 1, time.time()
            self._say(f"worker {action['worker']} on {slot.hostname} was not started: {e}")
        with self._lock:
            self._events.pop(action["worker"])
            self._results[f"{slot.hostname}[{action['slot']}]"] = (code, when)
        if not self._over.is_set():
            core.worker_ended(action["worker"], code)

    def _act_stop(self, core: _core.Driver, action: Dict[str, Any]) -> None:
        with self._lock:
            if action["worker"] in self._events:
                self._events[action["worker"]].set()

    def _act_rank(self, core: _core.Driver, action: Dict[str, Any]) -> None:
        with self._lock:
            slot = self._slots[action["worker"]]
            slot.rank, slot.size = action["rank"], action["size"]
            self._size = action["size"] if action["rank"] >= 0 else self._size

    def _act_say(self, core: _core.Driver, action: Dict[str, Any]) -> None:
        self._say(action["text"])

    def _act_end(self, core: _core.Driver, action: Dict[str, Any]) -> None:
        if not action["ok"]:
            self._error = self._error or action["text"]
        self.stop()

    def _say(self, text: str) -> None:
        if self._verbose:
            print(f"horovod: {text}", flush=True)

    # -- looking ----------------------------------------------------------------------------

    def world_size(self) -> int:
        return self._size

    def local_size(self, host: str) -> int:
        return len(self.host_assignments.get(host, ()))

    @property
    def host_assignments(self) -> Dict[str, List[SlotInfo]]:
        """Places of living workers by host."""
        with self._lock:
            places: Dict[str, List[SlotInfo]] = {}
            for worker in self._events:
                places.setdefault(self._slots[worker].hostname, []).append(self._slots[worker])
        return {host: sorted(slots, key=lambda s: s.local_rank)
                for host, slots in places.items()}

    def get_slot_info(self, host: str, slot: int) -> SlotInfo:
        """The place of the living worker there; rank -1: there is none."""
        return next((s for s in self.host_assignments.get(host, ()) if s.local_rank == slot),
                    INVALID_SLOT_INFO)

    # Workers tell the driver in C themselves what these told the original's.

    def record_ready(self, host: str, slot: int) -> None:
        """Nothing to do: ``hvd.init`` says it."""

    def register_worker_server(self, *_: Any) -> None:
        """Nothing to do: a worker has one connection to the driver, opened by itself."""

    def get_worker_client(self, slot_info: SlotInfo) -> None:
        """There is none: the driver notifies workers over their connection."""

    def get_coordinator_info(self) -> Optional[SlotInfo]:
        """The place of rank 0."""
        return next((s for slots in self.host_assignments.values() for s in slots
                     if s.rank == 0), None)
