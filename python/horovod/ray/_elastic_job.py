"""One run of an elastic job: the driver in C decides, Ray does.

1. A thread polls the places and tells the driver which hosts there are.  The thread of the
   caller takes the driver's actions and the news of the actors, and is the only one that
   starts and ends actors.
2. START: an actor in that slot.  When it says where it is, it gets its variables and the key
   as arguments of one call, which runs the user's function to its end.  Ray never restarts an
   actor: a worker's number is good for one process.
3. The end of the call is the end of the worker; its process is ended then.  A worker whose
   connection to the driver has ended has died, whenever Ray may hear of it: GONE_S.
4. An actor that is not up in time, or comes up on another node than that of its slot (the
   group was moved, because the node was lost), counts as failed and is named.  One whose place was
   taken away before it was up is asked for again: Ray keeps it waiting without a word.
5. The values are those of the functions that have returned, by the rank that they were started
   with.  Whoever was sent home has none.
"""
import contextlib
import os
import queue as queues
import select
import sys
import threading
import time
import uuid
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import ray

from horovod import _core
from horovod.ray import utils
from horovod.ray._calls import brief, is_death
from horovod.ray._coordinator import job_key, listening
from horovod.ray._elastic_worker import DONE, ElasticWorker
from horovod.ray._places import Places
from horovod.runner.elastic import driver as frequency

GONE_S = 0.25                   # rule 3
RESTARTS = 3                    # of a slot, before its host is left out
START_S = 100.0                 # an actor: its place, its process, the import of Ray
CLOSE_S = 5.0


class Options:
    """What an executor was told."""

    def __init__(self, settings: Any, min_workers: int, max_workers: Optional[int],
                 resources: Mapping[str, float], reset_limit: Optional[int],
                 cooldown_range: Optional[Tuple[float, float]], elastic_timeout: float,
                 variables: Mapping[str, str], executable: Tuple[Any, Any, Any]) -> None:
        self.settings = settings
        self.min_workers = min_workers
        self.max_workers = max_workers
        self.resources = resources              # of an actor: num_cpus, num_gpus
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range
        self.elastic_timeout = elastic_timeout
        self.variables = variables
        self.executable = executable

    @property
    def start_limit(self) -> float:
        return getattr(self.settings, "placement_group_timeout_s", START_S)


class Worker:
    """A START of the driver, and what has become of it."""

    def __init__(self, action: Dict[str, Any]) -> None:
        self.number: int = action["worker"]
        self.host: str = action["host"]
        self.slot: int = action["slot"]
        self.spawn_rank: int = action["rank"]
        self.spawn_size: int = action["size"]
        self.rank: int = -1                     # in the present generation
        self.env: Dict[str, str] = action["env"]
        self.actor: Any = None                  # None: waits for its place
        self.place: Any = None                  # of the actor
        self.since = time.monotonic()
        self.facts: Optional[Dict[str, Any]] = None
        self.has_begun = False
        self.is_over = False
        self.error: Optional[BaseException] = None
        self.result: Optional[Tuple[str, Any]] = None

    @property
    def name(self) -> str:
        return f"{self.host}[{self.slot}]"


class _Mail:
    """News of actors, from Ray's threads to ours."""

    def __init__(self) -> None:
        self._news: "queues.SimpleQueue" = queues.SimpleQueue()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()           # guards _fd

    def watch(self, ref: Any, worker: Worker) -> None:
        actor = worker.actor
        ref.future().add_done_callback(lambda future: self._put((worker, actor, future)))

    def _put(self, item: Any) -> None:
        self._news.put(item)
        self.wake()

    def wake(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def take(self) -> List[Any]:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        items = []
        while not self._news.empty():
            items.append(self._news.get())
        return items

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        with self._lock:
            fd, self._fd = self._fd, -1
        os.close(fd)


class ElasticJob:
    """From the first worker to the last."""

    def __init__(self, options: Options, places: Places) -> None:
        self._options = options
        self._places = places
        self._key = job_key(getattr(options.settings, "key", None), uuid.uuid4().hex)
        self._address, self._driver = listening(self._make_driver)
        self._mail = _Mail()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._discover, daemon=True,
                                        name="horovod-ray-discovery")
        self._found = 0                         # slots, of the last poll
        self._end: Optional[Dict[str, Any]] = None
        self._cancelled = ""
        self._fn: Any = None
        self._queue: Any = None
        self.workers: Dict[int, Worker] = {}
        self.port = self._driver.port

    def _make_driver(self, address: str) -> _core.Driver:
        o = self._options
        low, high = o.cooldown_range or (0, 0)
        return _core.Driver(
            self._key, uuid.uuid4().hex, [address], 0, o.min_workers,
            min_np=o.min_workers, max_np=o.max_workers or 0,
            reset_limit=-1 if o.reset_limit is None else o.reset_limit,
            restarts_per_slot=getattr(o.settings, "restarts_per_slot", RESTARTS),
            elastic_timeout=o.elastic_timeout, cooldown_low=low, cooldown_high=high,
            gone=GONE_S)

    # -- the life of the job --------------------------------------------------------

    def run(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        """``fn(executable)`` on all workers, however many there are and will be."""
        try:
            self._fn, self._queue = ray.put(fn), queue
            self._thread.start()
            while self._end is None:
                self._turn()
            return self._results()
        except BaseException as error:
            if self._end is None:               # Ctrl-C, above all
                self._driver.abort(self._cancelled or
                                   f"the driver was interrupted ({type(error).__name__})")
            raise
        finally:
            self._close()

    def cancel(self, why: str) -> None:
        """Ends ``run``, from any thread."""
        self._cancelled = why
        self._mail.wake()

    def _turn(self) -> None:
        poll = select.poll()
        for source in (self._driver, self._mail):
            poll.register(source, select.POLLIN)
        poll.poll(1000)
        if self._cancelled:
            raise RuntimeError(f"the elastic job was ended: {self._cancelled}")
        for worker, actor, future in self._mail.take():
            if actor is worker.actor:
                self._take_news(worker, future)
        action = self._driver.next(self._address)
        while action is not None and self._end is None:
            self._act(action)
            action = self._driver.next(self._address)
        if self._end is None:
            self._start_waiting()

    def _act(self, action: Dict[str, Any]) -> None:
        kind = action["kind"]
        if kind == "start":
            self.workers[action["worker"]] = Worker(action)
        elif kind == "stop":
            self._fail(self.workers[action["worker"]], "it was stopped")
        elif kind == "rank":
            self.workers[action["worker"]].rank = action["rank"]
        elif kind == "say":
            say(action["text"])
        elif kind == "end":
            self._end = action

    def _results(self) -> List[Any]:
        assert self._end is not None
        if not self._end["ok"]:
            culprit = self.workers.get(self._end["worker"])
            text = self._end["text"]
            if self._found < self._options.min_workers:
                text += f"; {self._places.describe()}"
            raise RuntimeError(text) from (culprit and culprit.error)
        done = [w for w in self.workers.values() if w.result and w.result[0] == DONE]
        return [w.result[1] for w in sorted(done, key=lambda w: (w.spawn_rank, w.number))
                if w.result]

    def _close(self) -> None:
        self._stop.set()
        for worker in self.workers.values():
            self._kill(worker)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        self._driver.close()
        self._mail.close()

    # -- hosts ----------------------------------------------------------------------

    def _discover(self) -> None:
        """Rule 1."""
        while not self._stop.is_set():
            try:
                hosts = self._places.poll()
                if not self._stop.is_set():
                    self._found = sum(slots for _, slots in hosts)
                    self._driver.hosts(hosts)
                    self._mail.wake()           # somebody may wait for a place
            except Exception as error:
                if self._stop.is_set():
                    return
                self._driver.discovery_failed(
                    f"discovery failed: {type(error).__name__}: {error}")
            self._stop.wait(self._pause())

    def _pause(self) -> float:
        pause = frequency.DISCOVER_HOSTS_FREQUENCY_SECS
        return min(pause, self._places.pause())

    # -- workers --------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Rule 2, and the limit of rule 4."""
        for worker in [w for w in self.workers.values() if not w.is_over]:
            if worker.actor is not None and worker.facts is None and \
                    worker.place != self._places.place(worker.host, worker.slot):
                self._kill(worker)
            if worker.actor is None:
                self._create(worker)
            elif worker.facts is None and \
                    time.monotonic() - worker.since > self._options.start_limit:
                say(f"{worker.name}: {self._not_up(worker)}")
                self._fail(worker, "its actor was not up in time")

    def _create(self, worker: Worker) -> None:
        worker.place = self._places.place(worker.host, worker.slot)
        where = self._places.options(worker.host, worker.slot)
        if where is None:
            return
        options: Dict[str, Any] = dict(max_restarts=0, max_task_retries=0,
                                       **self._options.resources, **where)
        worker.actor = ray.remote(ElasticWorker).options(**options).remote(
            worker.name, worker.spawn_rank, worker.spawn_size)
        worker.since = time.monotonic()
        self._mail.watch(worker.actor._facts.remote(), worker)

    def _not_up(self, worker: Worker) -> str:
        return (f"the actor was not up within {self._options.start_limit:g} s "
                f"(placement_group_timeout_s); it asked for {dict(self._options.resources)} on "
                f"{worker.host}, and {self._places.describe()}")

    def _take_news(self, worker: Worker, future: Any) -> None:
        if worker.is_over:
            return
        error = future.exception()
        if error is not None:
            worker.error = error
            signal = 9 if is_death(error) else 0
            self._over(worker, 1, signal, brief(error))
        elif worker.facts is None:
            self._came(worker, future.result())
        else:
            worker.result = future.result()
            self._over(worker, 0)

    def _came(self, worker: Worker, facts: Dict[str, Any]) -> None:
        worker.facts = facts
        node = self._places.node_of(worker.host)
        if node is not None and node != facts["node_id"]:
            self._fail(worker, "Ray moved its place to another node")
        for other in self._beside(worker):
            if self._may_begin(other):
                self._begin(other)

    def _beside(self, worker: Worker) -> List[Worker]:
        """The living workers of its host, by slot."""
        return sorted((w for w in self.workers.values()
                       if w.host == worker.host and not w.is_over), key=lambda w: w.slot)

    def _may_begin(self, worker: Worker) -> bool:
        """With GPUs: when all that start on this host have said which they have."""
        if worker.facts is None or worker.has_begun:
            return False
        return not self._options.resources.get("num_gpus") or \
            all(w.facts is not None for w in self._beside(worker) if w.actor is not None)

    def _begin(self, worker: Worker) -> None:
        worker.has_begun = True
        self._mail.watch(worker.actor._run_elastic.remote(
            self._variables(worker), self._key, self._fn, self._queue,
            self._options.executable), worker)

    def _variables(self, worker: Worker) -> Dict[str, str]:
        facts = worker.facts or {}
        nics = self._options.settings.nics or \
            ([facts["interface"]] if facts["interface"] else [])
        result = {**utils.nics_to_env_var(sorted(nics)),
                  "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
                  "PYTHONUNBUFFERED": "1", **utils.user_variables(dict(os.environ)),
                  **self._options.variables, **worker.env}
        if facts["gpu_ids"]:
            result["CUDA_VISIBLE_DEVICES"] = ",".join(self._devices(worker))
        return result

    def _devices(self, worker: Worker) -> List[str]:
        """The GPUs that Ray gave to the workers of this host, its own ones where its local rank
        points to."""
        known = [w for w in self._beside(worker) if w is not worker and w.facts]
        known.insert(int(worker.env["HOROVOD_LOCAL_RANK"]), worker)
        return [str(gpu) for w in known for gpu in (w.facts or {})["gpu_ids"]]

    def _fail(self, worker: Worker, why: str) -> None:
        if not worker.is_over:
            self._over(worker, 1, 0, why)

    def _over(self, worker: Worker, code: int, signal: int = 0, text: str = "") -> None:
        worker.is_over = True
        self._kill(worker)
        self._driver.worker_ended(worker.number, code, signal, text)

    @staticmethod
    def _kill(worker: Worker) -> None:
        actor, worker.actor = worker.actor, None
        if actor is not None and ray.is_initialized():
            ray.kill(actor)


def say(text: str) -> None:
    """A line for the user of the driver."""
    sys.stderr.write(f"horovod: {text}\n")
    sys.stderr.flush()
