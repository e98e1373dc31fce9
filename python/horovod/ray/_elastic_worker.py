"""What a worker of an elastic job does, in its actor.

Its lines of output carry the rank it has at that moment: Ray shows them on the driver with the
name of the actor, which is that of a slot.
"""
import contextlib
import os
import sys
import threading
from typing import Any, Callable, Iterator, Mapping, Tuple

from horovod import _core
from horovod.common.exceptions import WorkerRetired
from horovod.ray import _actor
from horovod.ray.worker import BaseHorovodWorker

DONE, LEFT = "done", "left"     # the function has returned; the job goes on without it


class ElasticWorker(BaseHorovodWorker):
    """One process of an elastic job: it runs one function, and ends."""

    def __init__(self, name: str, world_rank: int, world_size: int) -> None:
        super().__init__(world_rank, world_size)
        self._name = name

    def __repr__(self) -> str:
        return self._name               # how Ray calls it beside its output

    def _run_elastic(self, variables: Mapping[str, Any], key: bytes,
                     func: Callable[[Any], Any], queue: Any,
                     executable: Tuple[Any, Any, Any]) -> Tuple[str, Any]:
        _actor.setup(variables, key)
        with _ranked_output():
            try:
                self.start_executable(*executable)
                value = self._run(func, queue)
            except WorkerRetired:
                return LEFT, None
            except SystemExit as error:
                if error.code not in (None, 0):
                    raise RuntimeError(f"the function has called exit({error.code})") from None
                value = None
            _actor.leave()
            return DONE, value


class _RankedStream:
    """A stream whose lines begin with the rank."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at_start = True
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        with self._lock:
            for line in text.splitlines(keepends=True):
                if self._at_start:
                    self._stream.write(f"[{_rank()}] ")
                self._stream.write(line)
                self._at_start = line.endswith("\n")
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _rank() -> str:
    return str(_core.rank()) if _core.is_initialized() else os.environ.get("HOROVOD_RANK", "?")


@contextlib.contextmanager
def _ranked_output() -> Iterator[None]:
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_RankedStream, before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
