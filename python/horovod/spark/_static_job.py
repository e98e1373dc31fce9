"""A job of a fixed size on Spark: one process per task, all at the same time.

1. All tasks register, then ranks are given: hosts sorted by hash and rotated until task 0 is
   on the first, consecutive on each host.
2. A task that comes a second time is refused while the job lives: a process cannot join
   again.  Only a copy that Spark has started beside a living task (speculation) waits.
3. When a process fails, the others get SETTLE_S to end by themselves (a mistake in the
   function fails on all of them; a lost peer is noticed within that time), then they are
   stopped.  The exception tells the cause.
4. Whatever happens, processes are ended first, through their tasks; then the Spark job is.
"""
import time
from typing import Any, Dict, List

from horovod import _core
from horovod.runner._outcome import Ends, values
from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.common.util.timeout import TimeoutException
from horovod.runner.gloo_run import create_slot_env_vars
from horovod.spark._job import (ECHO_S, GRACE_S, LOST, STOP_S, Job, driver_addresses, why_ended,
                                why_lost)
from horovod.spark._service import Task
from horovod.spark._submit import is_dynamic

SETTLE_S = 1.0


def ranked(tasks: List[Task]) -> List[Task]:
    """The tasks in rank order: rule 1.  ``tasks`` are in the order of their indices."""
    hosts = sorted({task.place["host_hash"] for task in tasks})
    first = hosts.index(tasks[0].place["host_hash"])
    order = {host: i for i, host in enumerate(hosts[first:] + hosts[:first])}
    return sorted(tasks, key=lambda task: order[task.place["host_hash"]])


class StaticJob(Job):
    """One call of ``horovod.spark.run``."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.running: Dict[int, Task] = {}          # by rank
        self.lost = False                           # a task has gone: Spark will retry it
        self.ends = Ends()

    def run(self) -> List[Any]:
        bind, known = driver_addresses(self.context)
        self.server = _core.Server(self.key, self.job_id, [bind], 0, self.count, timeout=0.0)
        try:
            return self._serve(bind, known, not is_dynamic(self.context), "horovod.spark.run")
        finally:
            self.server.close()

    def _live(self, address: str) -> List[Any]:
        try:
            self._gather()
            self._start(address)
            self._wait()
            self._settle()
        except BaseException:
            self._stop("the driver of the job was interrupted")
            raise
        finally:
            self._end_tasks(self.lost or len(self.tasks) < self.count)
        return self._values()

    def _values(self) -> List[Any]:
        error = self.ends.failure()
        if error is not None:
            if self.ends.culprit()[0] in self.ends.died:        # type: ignore[index]
                self._append_spark(error)
            raise error
        missing = [rank for rank in range(self.count) if rank not in self.ends.results]
        if missing:
            raise self._spark_failure()
        return values([bytes(self.ends.results[rank]) for rank in range(self.count)])

    # -- events -----------------------------------------------------------------------

    def _take(self, kind: str, task: Any, head: dict, body: bytes) -> None:
        super()._take(kind, task, head, body)
        if kind == "register":
            self._register(task)
        elif kind == "exit":
            self._exit(task, head, body)
        elif kind == "lost":
            self._lose(task)

    def _register(self, task: Task) -> None:
        index = task.place["index"]
        known = self.tasks.get(index)
        if known is None and not self.lost and not self.running:
            self.tasks[index] = task
        elif known is not None and not self.lost:
            self.parked.append(task)
        else:
            task.tell("refused", why=(
                f"task {index} was started again, but the job has a fixed size and has lost "
                "a process: it ends; horovod.spark.run_elastic goes on in such a case"))

    def _exit(self, task: Task, head: dict, body: bytes) -> None:
        if self.running.pop(task.rank, None) is None:
            return
        self.ends.results[task.rank] = bytearray(body)
        self._ended(task, head["code"], head["signal"], why_ended(task, head))

    def _lose(self, task: Task) -> None:
        if task in self.parked:
            self.parked.remove(task)
            return
        self.lost = True
        if self.running.pop(task.rank, None) is not None:
            self._ended(task, LOST, 0, why_lost(task))

    def _ended(self, task: Task, code: int, number: int, why: str) -> None:
        self.ends.ends.append((task.rank, code, number, why))
        if code != 0 and not self.ends.said(task.rank)[0]:
            self.ends.died.add(task.rank)

    # -- life ---------------------------------------------------------------------------

    def _gather(self) -> None:
        """Waits until all tasks are there."""
        deadline = time.monotonic() + self.limit_s
        while len(self.tasks) < self.count and not self.spark_ended and not self.lost:
            if not self._event(deadline - time.monotonic()):
                raise TimeoutException(self._too_few(self.limit_s, self.count))
        if len(self.tasks) == self.count and not self.lost:
            return
        if not self.spark_ended:                    # the reason is on its way
            self._until(lambda: self.spark_ended, ECHO_S)
        if "SPARK-24819" in str(self.spark_error):
            waited_s = self.limit_s - (deadline - time.monotonic())
            raise TimeoutException(self._too_few(waited_s, self.count))
        raise self._spark_failure()

    def _start(self, address: str) -> None:
        order = ranked([self.tasks[index] for index in range(self.count)])
        hosts: Dict[str, int] = {}
        for task in order:
            host = task.place["host_hash"]
            hosts[host] = hosts.get(host, 0) + 1
        slots = get_host_assignments([HostInfo(*item) for item in hosts.items()], self.count)
        for task, slot in zip(order, slots):
            task.rank = slot.rank
            self.running[slot.rank] = task
        for task, slot in zip(order, slots):
            self._start_process(task, {**self._meeting(address, self.server.port, task),
                                       **create_slot_env_vars(slot)})

    def _wait(self) -> None:
        """Until all processes have ended, or one has failed."""
        while self.running and self.ends.culprit() is None and not self.spark_ended:
            self._event(3600.0)

    def _settle(self) -> None:
        """Rule 3."""
        if not self.running:
            return
        first = self.ends.culprit()
        if first is not None:
            self._until(lambda: not self.running, SETTLE_S)
            self._until(lambda: not self.running or self._has_cause(), ECHO_S)
        else:                           # Spark has ended the job
            self._until(lambda: not self.running, ECHO_S)
        first = self.ends.culprit()
        self._stop(f"rank {first[0]} failed" if first else "the Spark job has ended",
                   first[0] if first else -1)

    def _has_cause(self) -> bool:
        first = self.ends.culprit()
        return first is not None and (first[0] in self.ends.died or
                                      self.ends.said(first[0])[0].get("echo") is False)

    def _stop(self, why: str, rank: int = -1) -> None:
        """Ends the processes that are left; they do not count as failed."""
        if not self.running:
            return
        known = len(self.ends.ends)
        self.server.abort(rank, why)
        for task in list(self.running.values()):
            task.tell("stop", grace_s=GRACE_S)
        self._until(lambda: not self.running, STOP_S)
        self.lost = self.lost or bool(self.running)
        for end in self.ends.ends[known:]:
            self.ends.died.discard(end[0])
        if known:
            del self.ends.ends[known:]

