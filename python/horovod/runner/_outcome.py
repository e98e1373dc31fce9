"""What a job of ``horovod.run`` or ``horovod.spark.run`` has left, and what is made of it:
the values of all ranks, or the exception that names the one that failed."""
import os
import sys
from typing import Any, Callable, Optional, Sequence

from horovod.runner import _message
from horovod.runner.common.util import codec


def function_message(func: Callable, args: Sequence, kwargs: dict) -> bytes:
    """The function for ``horovod.runner.run_task``, with the places of this process where
    modules are looked for."""
    path = [os.path.abspath(p) if p else os.getcwd() for p in sys.path]
    return _message.pack({"path": path}, codec.dumps((func, tuple(args), dict(kwargs))))


class Ends:
    """Results and ends of the processes of a job, in the order in which they came."""

    def __init__(self) -> None:
        self.results: dict[int, bytearray] = {}
        self.ends: list[tuple[int, int, int, str]] = []     # rank, code, signal, text
        self.died: set[int] = set()     # who ended without a word, and not because of us
        self.verdict: Optional[int] = None      # the rank at fault, if it is known

    def said(self, rank: int) -> tuple[dict, bytes]:
        """What a rank has sent; an empty head: it died without a word."""
        try:
            return _message.unpack(bytes(self.results.get(rank, b"")))
        except (ValueError, KeyError):
            return {}, b""

    def culprit(self) -> Optional[tuple[int, int, int, str]]:
        """The end of the rank that failed first.  A rank that fails because another one has
        may be the first to end: the cause counts, not the echo."""
        failed = [end for end in self.ends if end[1] != 0]
        causes = [end for end in failed if end[0] in self.died or
                  self.said(end[0])[0].get("echo") is False]
        causes += [end for end in failed if end[0] == self.verdict]
        return next(iter(causes or failed), None)

    def failure(self) -> Optional[RuntimeError]:
        """The exception that tells it; None: no process has failed."""
        first = self.culprit()
        if first is None:
            return None
        rank, code, _, why = first
        text = ("Horovod detected that one or more processes exited with non-zero status, "
                "thus causing the job to be terminated. The first process to do so was:\n"
                f"Process name: {rank}\nExit code: {code}\n")
        if why:
            text += f"Reason: {why}\n"
        head, body = self.said(rank)
        if head.get("ok") is False:
            text += f"Rank {rank} raised:\n{body.decode('utf-8', 'replace')}"
        error = RuntimeError(text)
        error.rank = rank               # type: ignore[attr-defined]
        return error


def values(messages: Sequence[bytes]) -> list[Any]:
    """What the function returned, in rank order."""
    result = []
    for rank, message in enumerate(messages):
        try:
            head, body = _message.unpack(message)
        except (ValueError, KeyError) as e:
            raise RuntimeError(f"rank {rank} ended without a result: {e}") from None
        result.append(codec.loads(body))
    return result
