"""What jobs of a fixed size and elastic ones on Spark have in common: a service for the tasks,
the Spark job, and one thread that takes the events of both."""
import logging
import queue
import socket
import time
import uuid
from typing import Any, Dict, List, Optional

from horovod import _core
from horovod.common.advice import advised
from horovod.runner.gloo_run import create_run_env_vars
from horovod.spark._service import Output, Service, Task
from horovod.spark._submit import SparkJob

log = logging.getLogger("horovod.spark")
ECHO_S = 5.0                    # for the cause, when only echoes of it are known
GRACE_S = 2.0                   # between SIGTERM and SIGKILL
STOP_S = GRACE_S + 8.0
LOST = 255                      # exit code of a process whose end nobody has seen
TOO_FEW = ("Timed out waiting for Spark tasks to start. Please check that you have enough "
           "resources to run all Horovod processes. Each Horovod process runs in a Spark "
           "task. You may need to increase the start_timeout parameter to a larger value if "
           "your Spark resources are allocated on-demand.")


def driver_addresses(context: Any) -> tuple:
    """(where to listen, what tasks are told): the interface that Spark uses."""
    conf = context.getConf()
    known = conf.get("spark.driver.host", "127.0.0.1").strip("[]")
    bind = conf.get("spark.driver.bindAddress", known).strip("[]")
    return socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM)[0][4][0], known


def signal_text(number: int) -> str:
    """Why a process that a signal has ended may have ended."""
    if number == 9:
        return ("killed by SIGKILL. If that was for lack of memory: the memory of training "
                "processes is outside Spark's accounting, raise spark.executor.memoryOverhead")
    return f"killed by signal {number}"


def why_ended(task: Task, head: dict) -> str:
    """What a task says of the end of its process; empty: the exit code says it."""
    why = head.get("why") or (signal_text(head["signal"]) if head["signal"] else "")
    return f"{task}: {why}" if why else ""


def why_lost(task: Task) -> str:
    return f"Spark's {task} was lost: its executor or its Python worker has ended"


class Job:
    """One call of ``horovod.spark.run`` or ``run_elastic``.  ``count`` tasks are submitted."""

    def __init__(self, context: Any, count: int, limit_s: float, function: bytes,
                 executable: str, env: Dict[str, str], nics: Optional[List[str]],
                 output: Output) -> None:
        self.context, self.count, self.limit_s = context, count, limit_s
        self.function, self.executable, self.env, self.nics = function, executable, env, nics
        self.output = output
        self.key = _core.generate_key()
        self.job_id = uuid.uuid4().hex
        self.tasks: Dict[int, Task] = {}            # by index
        self.parked: List[Task] = []                # copies of living tasks
        self.spark_error: Optional[BaseException] = None
        self.spark_ended = False

    def _serve(self, bind: str, known: str, barrier: bool, name: str) -> Any:
        """Starts the service and the Spark job, and runs the job: ``_live``."""
        self.service = Service(self.key, bind, self.output)
        try:
            self.spark = SparkJob(
                self.context, self.count, (known, self.service.port), self.key, barrier, name,
                lambda error: self.service.events.put(("job", error, {}, b"")))
            return self._live(known)
        finally:
            self.service.close()

    def _live(self, address: str) -> Any:
        raise NotImplementedError

    def _end_tasks(self, cancel: bool) -> None:
        for task in [*self.tasks.values(), *self.parked]:
            task.tell("end", error=None)
        self.spark.leave(cancel)
        self._drain()

    # -- events -----------------------------------------------------------------------

    def _take(self, kind: str, task: Any, head: dict, body: bytes) -> None:
        """One event."""
        if kind == "job":
            self.spark_error, self.spark_ended = task, True

    def _event(self, limit_s: float) -> bool:
        """Takes one event; False: none has come in time."""
        try:
            event = self.service.events.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            return False
        self._take(*event)
        return True

    def _drain(self) -> None:
        while self._event(0.0):
            pass

    def _until(self, condition: Any, limit_s: float) -> bool:
        deadline = time.monotonic() + limit_s
        while not condition():
            if not self._event(deadline - time.monotonic()):
                return bool(condition())
        return True

    # -- processes --------------------------------------------------------------------

    def _start_process(self, task: Task, env: Dict[str, str]) -> None:
        env = {**env, "HOROVOD_JOB_ID": self.job_id,
               "HOROVOD_SPARK_GPUS": ",".join(task.place["gpus"])}
        env.setdefault("HOROVOD_GLOO_TIMEOUT_SECONDS", str(max(1, round(self.limit_s))))
        task.tell("start", self.function, env={**env, **self.env},
                  executable=self.executable, output=bool(self.output))

    def _meeting(self, address: str, port: int, task: Task) -> Dict[str, str]:
        """The variables that tell the process of a task where the others are."""
        return create_run_env_vars(address, self._nics(task), port)

    def _nics(self, task: Task) -> List[str]:
        if self.nics:
            return sorted(self.nics)
        interface = task.place["interface"]
        return [interface] if interface else []

    # -- errors -----------------------------------------------------------------------

    def _too_few(self, waited_s: float, needed: int) -> str:
        missing = sorted(set(range(needed)) - set(self.tasks))
        return advised(
            f"{TOO_FEW} After {waited_s:.0f} s {len(self.tasks)} of {needed} tasks have "
            f"started (missing: {', '.join(map(str, missing[:20]))}"
            f"{', ...' if len(missing) > 20 else ''}); Spark's default parallelism is "
            f"{self.context.defaultParallelism}.")

    def _spark_failure(self) -> RuntimeError:
        log.error("the Spark job has failed: %s", self.spark_error)
        error = RuntimeError("Spark job has failed, see the error above.")
        error.__cause__ = self.spark_error
        return error

    def _append_spark(self, error: BaseException) -> None:
        """What Spark says about an executor that was lost."""
        for line in str(self.spark_error or "").splitlines():
            if "ExecutorLostFailure" in line or "exited unexpectedly" in line:
                error.args = (f"{error.args[0]}Spark says: {line.strip()}\n",)
                return
