"""Elastic training: state that survives the loss and the arrival of workers.

A function decorated with a framework's ``elastic.run`` is started again from its beginning
whenever the job has changed; what it must not lose is in its state, which is committed now
and then, restored after a failure, and made equal on all ranks before each start.
"""
import functools
import queue
from typing import Any, Callable, Dict, List

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

_REMOVED = 1                # HostUpdateResult.removed: hosts were taken away, none added


class NotificationManager:
    """Hears from the elastic driver that the hosts have changed, and tells the states.

    ``init`` returns at once outside an elastic job.
    """

    def __init__(self) -> None:
        self._listeners: set = set()
        self._service: Any = None

    def init(self) -> None:
        import os
        if self._service is not None or not os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"):
            return
        if os.environ.get("HOROVOD_ELASTIC") != "1":
            return
        try:
            from horovod.runner.elastic.worker import (     # type: ignore[attr-defined]
                start_notification_service)
        except ImportError:
            return                  # no elastic driver in this installation
        self._service = start_notification_service(self)

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
        """Called by the notification thread."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """Saves the state, then raises HostsUpdatedInterrupt if hosts have changed."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on every rank, if any rank has heard of a change.

        Collective.  One exchange: the newest timestamp and all results of all ranks.
        """
        previous = newest = self._last_updated_timestamp
        result = 0
        while not self._host_messages.empty():
            timestamp, update = self._host_messages.get()
            if timestamp > newest:
                newest, result = timestamp, result | update
        previous, newest, result = self._agree_on_updates(previous, newest, result)
        self._last_updated_timestamp = newest
        if newest > previous:
            raise HostsUpdatedInterrupt(result == _REMOVED)

    def _agree_on_updates(self, previous: int, newest: int, result: int) -> tuple:
        """Rank 0's view; frameworks with a reduction at hand take everybody's."""
        return self._bcast_object((previous, newest, result))

    def save(self) -> None:
        """Keeps a copy of the state in memory."""
        raise NotImplementedError()

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
        self._set_attrs()
        super().__init__(bcast_object=bcast_object, get_rank=get_rank)

    def save(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def restore(self) -> None:
        self._set_attrs()

    def sync(self) -> None:
        if self._saved_state:
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attrs()

    def _set_attrs(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)


def run_fn(func: Callable, reset: Callable[[], None]) -> Callable:
    """The loop around an elastic training function; ``reset`` re-initialises the library."""
    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        notification_manager.init()
        notification_manager.register_listener(state)
        skip_sync = False
        try:
            while True:
                try:
                    if not _agree_to_skip(state, skip_sync):
                        state.sync()
                    return func(state, *args, **kwargs)
                except HorovodInternalError:
                    state.restore()
                    skip_sync = False
                except HostsUpdatedInterrupt as e:
                    skip_sync = e.skip_sync
                reset()
                state.on_reset()
        finally:
            notification_manager.remove_listener(state)
    return wrapper


def _agree_to_skip(state: State, skip_sync: bool) -> bool:
    """A worker that has just come must be synced, whatever the others think: states that
    can reduce agree on it first."""
    agree = getattr(type(state), "_agree_to_skip_sync", None)
    return agree(state, skip_sync) if agree is not None else skip_sync


__all__ = ["State", "ObjectState", "run_fn", "notification_manager"]
