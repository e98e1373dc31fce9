"""What a worker of an elastic job is told.

Imported by: horovod.runner; programs written for Horovod 0.28.
"""
import enum

from horovod.common.elastic import NotificationManager as WorkerNotificationManager


class HostUpdateResult(enum.IntFlag):
    """How the hosts have changed; of several changes the parts are or-ed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
