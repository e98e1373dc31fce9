"""A limit that says what was awaited.

Imported by: horovod.ray, horovod.runner, horovod.spark; programs written for Horovod 0.28.
"""
import time


class TimeoutException(Exception):
    """The limit has passed."""


class Timeout:
    """``message`` may contain {activity} and {timeout}."""

    def __init__(self, timeout: float, message: str) -> None:
        self._timeout = timeout
        self._message = message
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def timed_out(self) -> bool:
        """Whether the limit has passed."""
        return time.monotonic() >= self._end

    def check_time_out_for(self, activity: str) -> None:
        """TimeoutException naming the activity if the limit has passed."""
        if self.timed_out():
            text = self._message.format(activity=activity, timeout=self._timeout)
            raise TimeoutException(f"{text} Timeout after {self._timeout} seconds.")
