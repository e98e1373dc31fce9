"""What to say in a process that has no job.  A forked child of a rank must not be sent to
``hvd.init``: the place of the rank is taken."""
import os

from horovod.common.advice import advised

_joined_by = 0                  # the process that called init; children inherit it


def joined() -> None:
    global _joined_by
    _joined_by = os.getpid()


def text() -> str:
    if _joined_by in (0, os.getpid()):
        return advised("Horovod has not been initialized; use hvd.init().")
    return advised(
        f"this process was forked from a rank (pid {_joined_by}) and is no rank of the job "
        f"itself: call Horovod in the rank, which may hand results to its children. Another "
        f"rank needs another process of the launcher (horovodrun -np).")
