"""An elastic job on Spark: one process per task; tasks come and go, and the training goes on.

1. The elastic driver (horovod/driver.h) decides who trains.  Each attempt of a task is a host
   of its own with one slot, "node1#7": attempts fail one by one, and the processes of a
   machine still share its memory.
2. A process that fails ends its task with an error, so that Spark starts the task again, on
   an executor that its exclusion rules allow.  The last attempt that Spark grants would take
   the whole stage with it: that task stays, and the driver may start a process in it again.
3. ``max_np`` tasks are submitted; those for which there is no room yet come when executors do.
4. Whatever happens, processes are ended first, through their tasks; then the Spark job is.
"""
import os
import re
import select
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set

from horovod import _core
from horovod.runner._outcome import Ends, values
from horovod.runner.common.util.timeout import TimeoutException
from horovod.spark._job import (GRACE_S, LOST, STOP_S, Job, driver_addresses, why_ended,
                                why_lost)
from horovod.spark._service import Task


def attempts_allowed(context: Any) -> int:
    """How often Spark starts a task; in local mode the master says it, and nothing else."""
    local = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+))?\])?", context.master)
    if local is not None:
        return int(local.group(1) or 1)
    return int(context.getConf().get("spark.task.maxFailures", "4"))


class _Actions:
    """Hands the actions of the driver to a queue, from a thread of its own."""

    def __init__(self, driver: _core.Driver, address: str, events: Any) -> None:
        self._driver, self._address, self._events = driver, address, events
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="horovod-spark-driver")
        self._thread.start()

    def _run(self) -> None:
        while True:
            action = self._driver.next(self._address)
            if action is not None:
                self._events.put(("action", action, {}, b""))
            elif self._ending in select.select([self._driver, self._ending], [], [])[0]:
                return

    def close(self) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._ending)


class ElasticJob(Job):
    """One call of ``horovod.spark.run_elastic``: ``count`` is the most processes."""

    def __init__(self, *args: Any, np: int, min_np: int, elastic_timeout_s: float,
                 reset_limit: Optional[int], verbose: int) -> None:
        super().__init__(*args)
        self.np, self.min_np, self.verbose = np, min_np, verbose
        self.elastic_timeout_s, self.reset_limit = elastic_timeout_s, reset_limit
        self.attempts = attempts_allowed(self.context)
        self.workers: Dict[int, Task] = {}          # with a process, by its number
        self.machines: Dict[str, str] = {}          # their names, by host hash
        self.stopping: Set[int] = set()             # workers that the driver has ended
        self.ranks: Dict[int, int] = {}             # of workers, as last told
        self.size = 0                               # of the last generation
        self.ended: Dict[int, tuple] = {}           # by number: code, signal, why, message
        self.end: Optional[dict] = None             # the driver's last word
        self.leaving = False                        # nothing counts any more

    def run(self) -> List[Any]:
        bind, known = driver_addresses(self.context)
        self.driver = _core.Driver(
            self.key, self.job_id, [bind], 0, self.np, min_np=self.min_np, max_np=self.count,
            reset_limit=-1 if self.reset_limit is None else self.reset_limit,
            elastic_timeout=self.elastic_timeout_s, grace=GRACE_S)
        try:
            return self._serve(bind, known, False, "horovod.spark.run_elastic")
        finally:
            self.driver.close()

    def _live(self, address: str) -> List[Any]:
        self.address = address
        actions = _Actions(self.driver, address, self.service.events)
        try:
            self._gather()
            while self.end is None:
                self._event(3600.0)
        except BaseException:
            self.driver.abort("the driver of the job was interrupted")
            raise
        finally:
            self._stop()
            actions.close()
            self._end_tasks(len(self.tasks) < self.count)
        return self._values()

    def _gather(self) -> None:
        """Waits until the tasks that the job needs to begin are there."""
        deadline = time.monotonic() + self.limit_s
        while len(self.tasks) < self.np and self.end is None:
            if not self._event(deadline - time.monotonic()):
                raise TimeoutException(self._too_few(self.limit_s, self.np))

    def _stop(self) -> None:
        self.leaving = True
        for task in self.workers.values():
            task.tell("stop", grace_s=GRACE_S)
        self._until(lambda: not self.workers, STOP_S)

    def _values(self) -> List[Any]:
        assert self.end is not None
        if not self.end["ok"]:
            raise self._failure(self.end["worker"], self.end["text"])
        results = {self.ranks[worker]: bytes(end[3]) for worker, end in self.ended.items()
                   if end[0] == 0 and self.ranks.get(worker, -1) >= 0}
        return values([results[rank] for rank in sorted(results) if rank < self.size])

    def _failure(self, worker: int, text: str) -> BaseException:
        """The process at fault with what it said, then why the job could not go on."""
        if worker not in self.ended:
            if self.spark_error is not None:
                return self._spark_failure()
            return RuntimeError(text)
        code, number, why, message = self.ended[worker]
        rank = max(0, self.ranks.get(worker, -1))
        ends = Ends()
        ends.results[rank] = bytearray(message)
        ends.ends.append((rank, code or 1, number, why))
        error = ends.failure()
        assert error is not None
        error.args = (f"{error.args[0]}{text}\n",)
        self._append_spark(error)
        return error

    # -- events -----------------------------------------------------------------------

    def _take(self, kind: str, task: Any, head: dict, body: bytes) -> None:
        super()._take(kind, task, head, body)
        if kind == "register":
            self._register(task)
        elif kind == "exit":
            self._exit(task, head, body)
        elif kind == "lost":
            self._lose(task)
        elif kind == "action":
            self._act(task)
        elif kind == "job" and not self.leaving:
            self.driver.abort(f"Spark has ended the job: {_first_line(self.spark_error)}")

    def _register(self, task: Task) -> None:
        index = task.place["index"]
        if self.leaving:
            task.tell("end", error=None)
        elif index in self.tasks:                   # speculation: a copy of a living task
            self.parked.append(task)
        else:
            task.host = f"{self._machine(task.place)}#{task.place['task']}"
            self.tasks[index] = task
            self._tell_hosts()

    def _machine(self, place: dict) -> str:
        """Its name in messages; containers of one machine, which share no memory, have others."""
        used = [m for h, m in self.machines.items() if h != place["host_hash"]]
        name = place["host_hash"] if place["hostname"] in used else place["hostname"]
        return self.machines.setdefault(place["host_hash"], name)

    def _tell_hosts(self) -> None:
        self.driver.hosts([(task.host, 1) for task in self.tasks.values()])

    def _remove(self, task: Task) -> None:
        """Before its worker ends, so that the driver does not start another one there."""
        index = task.place["index"]
        if task in self.parked:
            self.parked.remove(task)
        elif self.tasks.get(index) is task:
            del self.tasks[index]
            for other in [t for t in self.parked if t.place["index"] == index][:1]:
                self.parked.remove(other)
                self._register(other)
            self._tell_hosts()

    def _exit(self, task: Task, head: dict, body: bytes) -> None:
        worker = self._worker_of(task)
        if worker is None:
            return
        if head["code"] != 0 and not self.leaving and worker not in self.stopping and \
                task.place["attempt"] + 1 < self.attempts:
            self._remove(task)
            task.tell("end", error=f"the process of {task} has ended with code {head['code']}; "
                                   "Spark may start the task again")
        self._ended(worker, head["code"], head["signal"], why_ended(task, head), body)

    def _lose(self, task: Task) -> None:
        worker = self._worker_of(task)
        if not self.leaving:
            self._remove(task)
        if worker is not None:
            self._ended(worker, LOST, 0, why_lost(task), b"")

    def _worker_of(self, task: Task) -> Optional[int]:
        return next((w for w, t in self.workers.items() if t is task), None)

    def _ended(self, worker: int, code: int, number: int, why: str, message: bytes) -> None:
        del self.workers[worker]
        self.ended[worker] = code, number, why, message
        self.driver.worker_ended(worker, code, number, why)

    # -- actions ----------------------------------------------------------------------

    def _act(self, action: dict) -> None:
        getattr(self, "_act_" + action["kind"])(action)

    def _act_start(self, action: dict) -> None:
        worker = action["worker"]
        task = next((t for t in self.tasks.values() if t.host == action["host"]), None)
        if task is None or self.leaving:
            self.driver.worker_ended(worker, LOST, 0, f"the task of {action['host']} has gone")
            return
        self.workers[worker] = task
        self._start_process(task, {**self._meeting(self.address, self.driver.port, task),
                                   **action["env"]})

    def _act_stop(self, action: dict) -> None:
        task = self.workers.get(action["worker"])
        if task is not None:
            self.stopping.add(action["worker"])
            task.tell("stop", grace_s=action["grace"])

    def _act_rank(self, action: dict) -> None:
        self.ranks[action["worker"]] = action["rank"]
        if action["rank"] >= 0:
            self.size = action["size"]
        if action["worker"] in self.workers:
            self.workers[action["worker"]].rank = action["rank"]

    def _act_say(self, action: dict) -> None:
        if self.verbose:
            sys.stderr.write(f"[horovod.spark] {action['text']}\n")
            sys.stderr.flush()

    def _act_end(self, action: dict) -> None:
        self.end = action


def _first_line(error: Optional[BaseException]) -> str:
    return (str(error or "").splitlines() or ["without a word"])[0]
