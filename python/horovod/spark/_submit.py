"""A Spark job whose tasks are ours, in a thread and a job group of its own."""
import functools
import itertools
import logging
import threading
from typing import Any, Callable, Iterable, Iterator, Optional

from horovod.common.advice import advised
from horovod.spark import _task

log = logging.getLogger("horovod.spark")
LEAVE_S = 30.0                  # for Spark to end a job that has been cancelled
_numbers = itertools.count()


def active_context() -> Any:
    """The SparkContext of this process."""
    from pyspark import SparkContext
    context = SparkContext._active_spark_context
    if context is None or context._jsc is None:
        raise Exception(advised(
            "Could not find an active SparkContext, are you running in a PySpark "
            "session?" + _about_connect()))
    return context


def _about_connect() -> str:
    """A session of Spark Connect has no context in this process."""
    try:
        from pyspark.sql.utils import is_remote
        remote = is_remote()
    except ImportError:
        return ""
    return (" This is a Spark Connect session, whose context is on another machine: use a "
            "classic session (SparkSession.builder.master(...))." if remote else "")


def is_dynamic(context: Any) -> bool:
    """Whether executors come and go, which barrier stages do not allow."""
    return context.getConf().get("spark.dynamicAllocation.enabled", "false").lower() == "true"


def _partition(address: tuple, key: bytes, index: int, _: Iterable) -> Iterator:
    _task.serve(index, address, key)
    return iter(())


class SparkJob:
    """``count`` tasks; ``done(error)`` is called when Spark has ended the job.

    Barrier mode starts all tasks at once or none, which is what a job of a fixed size needs;
    plain tasks may be started again one by one, and as executors arrive.
    """

    def __init__(self, context: Any, count: int, address: tuple, key: bytes, barrier: bool,
                 name: str, done: Callable[[Optional[BaseException]], None]) -> None:
        from pyspark import InheritableThread
        self.group = f"{name}.{next(_numbers)}"
        self._context, self._count, self._barrier, self._done = context, count, barrier, done
        self._function = functools.partial(_partition, address, key)
        self._ended = threading.Event()
        self._thread = InheritableThread(target=self._run)
        self._thread.daemon = True
        self._thread.start()

    def _run(self) -> None:
        error: Optional[BaseException] = None
        try:
            self._context.setJobGroup(self.group, f"Horovod ({self._count} processes)",
                                      interruptOnCancel=True)
            rdd = self._context.parallelize(range(self._count), self._count)
            tasks = rdd.barrier() if self._barrier else rdd
            tasks.mapPartitionsWithIndex(self._function).collect()
        except BaseException as e:
            error = e
        self._ended.set()
        self._done(error)

    def leave(self, cancel: bool) -> None:
        """Waits for the end; Spark ends what is left when asked to cancel."""
        if cancel and not self._ended.is_set():
            self._cancel()
        if not self._ended.wait(LEAVE_S):
            self._cancel()
            if not self._ended.wait(LEAVE_S):
                log.warning("Spark has not ended the job group %s within %d s", self.group,
                            2 * LEAVE_S)

    def _cancel(self) -> None:
        try:
            self._context.cancelJobGroup(self.group)
        except Exception as e:          # the context has been stopped meanwhile
            log.warning("job group %s cannot be cancelled: %s", self.group, e)
