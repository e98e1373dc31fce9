"""Elastic training: state that survives the loss and the arrival of workers.

A function decorated with a framework's ``elastic.run`` is started again from its beginning
whenever the job has changed; what it must not lose is in its state, which is committed now
and then, restored after a failure, and made equal on all ranks before each start.

1. A commit counts when all ranks have agreed on it (``check_host_updates``).  If a worker dies
   before, the ranks that did not hear of the agreement go back to the commit before; rank 0 of
   the next generation is a survivor with the newest commit, and ``sync`` gives it to all.
2. Rank, size and whether to sync come from the driver, with each ``init``.
3. Of the driver's messages only the newest counts, and only what all ranks have agreed on:
   everybody leaves the function at the same commit.
"""
import contextlib
import functools
import queue
import signal
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Tuple

from horovod import _core
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

_REMOVED = 1                # HostUpdateResult.removed: hosts were taken away, none added


class NotificationManager:
    """Tells the states of this process that the hosts have changed.

    Workers of horovodrun need none: the core holds the driver's newest message, and each
    commit looks there.  It serves programs that learn of changes in their own way.
    """

    def __init__(self) -> None:
        self._listeners: set = set()

    def init(self) -> None:
        """Nothing to start: there is no listener beside the core."""

    def register_listener(self, listener: Any) -> None:
        self._listeners.add(listener)

    def remove_listener(self, listener: Any) -> None:
        self._listeners.discard(listener)

    def handle_hosts_updated(self, timestamp: int, update_res: int) -> None:
        for listener in list(self._listeners):
            listener.on_hosts_updated(timestamp, update_res)


notification_manager = NotificationManager()


class State:
    """What an elastic training must not lose.

    Subclasses say how to ``save`` a copy in memory, ``restore`` it and ``sync`` it from
    rank 0 to all; ``commit`` saves and looks whether hosts have changed.
    """
    _commits = 0                # agreed on by all ranks, since the job began

    def __init__(self, bcast_object: Callable, get_rank: Callable) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: "queue.Queue" = queue.Queue()
        self._last_updated_timestamp = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(self, callbacks: List[Callable[[], None]]) -> None:
        """Functions to call after the job has changed, before the state is synced: the
        place to scale a learning rate by the new size."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: int, update_res: int) -> None:
        """Called by the notification manager, from any thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then raises HostsUpdatedInterrupt if hosts have changed."""
        self.save()
        try:
            self.check_host_updates()
        except HostsUpdatedInterrupt:
            self._count_commit(self._commits + 1)
            raise
        except BaseException:           # rule 1
            self._unsave()
            raise
        self._count_commit(self._commits + 1)

    def _count_commit(self, commits: int) -> None:
        self._commits = commits
        _core.elastic_committed(commits)

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on every rank, if any rank has heard of a change.

        Collective: one small exchange.
        """
        _, result = _core.elastic_pending()
        due = result != 0
        newest = self._last_updated_timestamp
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > newest:
                newest, result, due = timestamp, result | update, True
        due, newest, result = self._agree_on_updates(due, newest, result)
        self._last_updated_timestamp = newest
        if due:
            raise HostsUpdatedInterrupt(result == _REMOVED)

    def _agree_on_updates(self, due: bool, newest: int, result: int) -> Tuple[bool, int, int]:
        """Rank 0's view; frameworks with a reduction at hand take everybody's."""
        return self._bcast_object((due, newest, result))

    def _agree_to_skip_sync(self, skip_sync: bool) -> bool:
        """As above."""
        return self._bcast_object(skip_sync)

    def save(self) -> None:
        """Keeps a copy of the state in memory."""
        raise NotImplementedError()

    def _unsave(self) -> None:
        """Takes back the last save."""

    def restore(self) -> None:
        """Goes back to the copy of the last save."""
        raise NotImplementedError()

    def sync(self) -> None:
        """Makes the state of rank 0 that of all ranks."""
        raise NotImplementedError()

    def reset(self) -> None:
        """Called when the job has changed, before the reset callbacks."""


class ObjectState(State):
    """Plain Python values as attributes: ``ObjectState(bcast, rank, epoch=0, batch=0)``."""

    def __init__(self, bcast_object: Callable, get_rank: Callable, **kwargs: Any) -> None:
        self._saved_state: Dict[str, Any] = kwargs
        self._saved_before = kwargs
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        self._saved_before = self._saved_state
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def _unsave(self) -> None:
        self._saved_state = self._saved_before

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


# -- the loop -----------------------------------------------------------------------


def run_fn(func: Callable, reset: Callable[[], None]) -> Callable:
    """The loop around an elastic training function; ``reset`` re-initialises the library."""
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync, changed, forming = False, False, False
        try:
            with _notice():
                while True:
                    try:
                        forming = changed
                        if changed:
                            reset()
                            forming = False
                            state.on_reset()
                        if _needs_sync(state, skip_sync):
                            state.sync()
                        return func(state, *args, **kwargs)
                    except HorovodInternalError:
                        if forming and not _core.is_initialized():
                            raise       # no next generation: the job is over
                        state.restore()
                        skip_sync = False
                    except HostsUpdatedInterrupt as e:
                        skip_sync = e.skip_sync
                    changed = True
        finally:
            notification_manager.remove_listener(state)
    return wrapper


def _needs_sync(state: State, skip_sync: bool) -> bool:
    """The driver knows of new members and of lost ones; that nobody has restored for
    another reason the ranks ask each other."""
    info = _core.elastic_info()
    if not info["is_elastic"]:
        return not skip_sync
    if info["sync"]:
        return True
    agree = getattr(type(state), "_agree_to_skip_sync", None)
    return not (agree(state, skip_sync) if agree is not None else skip_sync)


@contextlib.contextmanager
def _notice() -> Iterator[None]:
    """SIGTERM to a worker of an elastic job is notice to leave: the step and its commit are
    completed, the others go on without it.  A handler of the script is left alone."""
    if not _core.elastic_info()["is_elastic"] or \
            threading.current_thread() is not threading.main_thread() or \
            signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(*_: Any) -> None:
        sys.stderr.write("horovod: SIGTERM: this worker leaves the job after its next commit\n")
        _core.elastic_leave()

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


__all__ = ["State", "ObjectState", "run_fn", "notification_manager"]
