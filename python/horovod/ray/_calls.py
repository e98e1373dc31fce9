"""Calls on all workers of a job, and how they end.

1. All workers are called before anything is awaited: they wait for each other.  Calls of
   several threads reach all workers in one order.
2. When one fails, the others get a moment to end by themselves (a mistake in the function
   fails on all of them).  Who is still busy then may wait for the failed one in a collective:
   the job is aborted through the rendezvous server, which reaches them there.
3. A worker that died does not come back: the job is aborted at once.
4. The exception is that of the culprit, not one of those that lost a peer; it names rank and
   node.
5. Where the caller fetches the values, a function has two results: the value, and a mark by
   which we see how it ended without fetching anything.
6. Results that nobody wants any more are looked at all the same: Ray prints an error that
   nobody has seen, with its traceback, when its reference goes.
"""
import contextlib
import functools
import os
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import ray
from ray.exceptions import (ActorDiedError, NodeDiedError, OutOfMemoryError, RayError,
                            RayTaskError, TaskCancelledError)

from horovod.common.exceptions import HorovodInternalError
from horovod.ray._coordinator import Coordinator

SETTLE_S = 1.0                  # rule 2
ABORT_S = 5.0                   # within which aborted ranks are back


def is_death(error: BaseException) -> bool:
    """Whether the worker is gone, in contrast to one whose function has failed."""
    return isinstance(error, RayError) and not isinstance(error, (RayTaskError,
                                                                  TaskCancelledError))


def named(error: BaseException, who: str) -> BaseException:
    """The same exception, of the same class where that can be, which says who.  A worker that
    is gone is an ActorDiedError, whatever Ray says of it: ActorUnavailableError when its node
    was lost, OutOfMemoryError."""
    if is_death(error):
        result = error if isinstance(error, ActorDiedError) else ActorDiedError()
        if not str(error).startswith("rank "):
            result.error_msg = f"{who} died: {error}"
        return result
    if isinstance(error, RayTaskError):
        text = f"{who} failed:\n{error}"
        return RayTaskError("execute", text, error.cause, pid=os.getpid()).as_instanceof_cause()
    return RuntimeError(f"{who} failed: {error}")


def brief(error: BaseException) -> str:
    """One line that says what it was."""
    if isinstance(error, OutOfMemoryError):
        return "Ray has killed the process, because its node ran out of memory"
    if isinstance(error, (NodeDiedError, ActorDiedError)) and "node has died" in str(error):
        return "its node has died"
    if is_death(error):
        return "the process ended (killed, out of memory, or exit)"
    cause = getattr(error, "cause", error)
    return f"{type(cause).__name__}: {cause}".splitlines()[0]


def swallow(refs: List[Any], timeout: float) -> List[Any]:
    """Looks at what comes in time; the others are returned."""
    if not refs:
        return []
    ready, others = ray.wait(refs, num_returns=len(refs), timeout=timeout)
    for ref in ready:
        with contextlib.suppress(RayError):
            ray.get(ref)
    return others


def bound(fn: Callable, args: Optional[Sequence[Any]],
          kwargs: Optional[Mapping[str, Any]]) -> Callable[[Any], Any]:
    """A function of the executable, which it ignores."""
    return functools.partial(_ignoring_executable, fn, tuple(args or ()), dict(kwargs or {}))


def _ignoring_executable(fn: Callable, args: tuple, kwargs: Dict[str, Any], _: Any) -> Any:
    return fn(*args, **kwargs)


class Failure:
    """What went wrong in a call, in the order in which it was seen."""

    def __init__(self) -> None:
        self.errors: Dict[int, BaseException] = {}

    def rank(self) -> int:
        """Rule 4."""
        for rank, error in self.errors.items():
            if not isinstance(error, HorovodInternalError):
                return rank
        rank, error = next(iter(self.errors.items()))
        culprit = getattr(error, "rank", -1)
        return culprit if culprit in self.errors else rank


class Workers:
    """The actors of a job by rank."""

    def __init__(self, actors: List[Any], facts: List[Dict[str, Any]],
                 coordinator: Coordinator) -> None:
        self.actors = actors
        self.facts = facts
        self.coordinator = coordinator
        self.aborted: Optional[str] = None          # why the job is over
        self.dead: Dict[int, str] = {}
        self._lock = threading.Lock()               # guards aborted
        self._order = threading.Lock()              # held while all workers are called
        self._watchers: List[threading.Thread] = []
        self._unseen: List[Any] = []                # rule 6: not ended yet

    def who(self, rank: int) -> str:
        f = self.facts[rank]
        return (f"rank {rank} on node {f['node_id']} ({f['hostname']}, {f['node_ip']}, "
                f"pid {f['pid']})")

    def abort(self, why: str, rank: int = -1) -> None:
        """Takes all workers out of their collectives; the first reason counts."""
        with self._lock:
            if self.aborted is None:
                self.aborted = why
                self.coordinator.abort(why, rank)

    # -- calls ----------------------------------------------------------------------

    def call(self, submit: Callable[[int, Any], Any]) -> List[Any]:
        """``submit(rank, actor)`` gives the reference of each; returns the results."""
        return self.wait(self._submit(submit))

    def run(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        shared = ray.put(fn)            # pickled once, not once for each worker
        return self.call(lambda rank, actor: actor._run.remote(shared, queue))

    def run_remote(self, fn: Callable[[Any], Any]) -> List[Any]:
        """References to the values; a thread looks after the call."""
        shared = ray.put(fn)
        pairs = self._submit(
            lambda rank, actor: actor._run_marked.options(num_returns=2).remote(shared))
        values, marks = [p[0] for p in pairs], [p[1] for p in pairs]
        watcher = threading.Thread(target=self._watch, args=(marks,), daemon=True,
                                   name="horovod-ray-watch")
        self._watchers = [t for t in self._watchers if t.is_alive()] + [watcher]
        watcher.start()
        return values

    def run_single(self, fn: Callable[[Any], Any], rank: int = 0) -> Any:
        return self.wait([self.actors[rank]._run.remote(fn, None)], [rank])[0]

    def join(self, timeout: float) -> None:
        """Waits for the threads of ``run_remote``, whose workers are gone."""
        for thread in self._watchers:
            thread.join(timeout)
        self._forget([], timeout)

    def _forget(self, refs: List[Any], timeout: float) -> None:
        """Rule 6."""
        self._unseen = swallow(self._unseen + refs, timeout)

    def _submit(self, submit: Callable[[int, Any], Any]) -> List[Any]:
        with self._order:
            return [submit(rank, actor) for rank, actor in enumerate(self.actors)]

    def _watch(self, marks: List[Any]) -> None:
        try:
            self.wait(marks)
        except BaseException:
            pass                        # whoever gets the values sees it

    # -- waiting --------------------------------------------------------------------

    def wait(self, refs: List[Any], ranks: Optional[List[int]] = None) -> List[Any]:
        """The results in order; rules 2 to 4."""
        rank_of = dict(zip(refs, ranks if ranks is not None else range(len(refs))))
        results: Dict[Any, Any] = {}
        failure = Failure()
        try:
            self._collect(rank_of, results, failure, None)
            if failure.errors:
                self._settle(rank_of, results, failure)
        except BaseException as error:      # Ctrl-C, above all
            self.abort(f"the driver was interrupted ({type(error).__name__})")
            self._forget(refs, ABORT_S)
            raise
        if not failure.errors:
            return [results[ref] for ref in refs]
        rank = failure.rank()
        raise named(failure.errors[rank], self.who(rank)) from None

    def _settle(self, rank_of: Dict[Any, int], results: Dict[Any, Any],
                failure: Failure) -> None:
        self._collect(rank_of, results, failure, SETTLE_S, self._needs_no_grace)
        rank = failure.rank()
        if self._needs_no_grace(failure) or len(results) + len(failure.errors) < len(rank_of):
            self.abort(f"{self.who(rank)}: {brief(failure.errors[rank])}", rank)
            self._collect(rank_of, results, failure, ABORT_S)
            self._forget(list(rank_of), 0)

    @staticmethod
    def _needs_no_grace(failure: Failure) -> bool:
        return any(map(is_death, failure.errors.values()))

    def _collect(self, rank_of: Dict[Any, int], results: Dict[Any, Any], failure: Failure,
                 limit: Optional[float],
                 enough: Callable[[Failure], bool] = lambda failure: False) -> None:
        """Takes what is ready: without a limit until all is there or one has failed, else
        until all is there, the time is over, or it is enough."""
        end = None if limit is None else time.monotonic() + limit
        while not enough(failure):
            pending = [ref for ref, rank in rank_of.items()
                       if ref not in results and rank not in failure.errors]
            left = None if end is None else end - time.monotonic()
            if not pending or (left is not None and left <= 0):
                return
            for ref in ray.wait(pending, num_returns=1, timeout=left)[0]:
                try:
                    results[ref] = ray.get(ref)
                except RayError as error:
                    self._failed(rank_of[ref], error, failure)
            if failure.errors and limit is None:
                return

    def _failed(self, rank: int, error: BaseException, failure: Failure) -> None:
        failure.errors[rank] = error
        if is_death(error):
            self.dead[rank] = brief(error)
