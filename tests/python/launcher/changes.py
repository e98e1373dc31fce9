"""Waiting for what others write or do, without asking again and again."""
import ctypes
import os
import select
import time

_libc = ctypes.CDLL(None, use_errno=True)
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100


class Changes:
    """Wakes up when something in a directory is written, or a process ends."""

    def __init__(self, directory, process=None):
        self.fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self.fd >= 0
        watch = _libc.inotify_add_watch(self.fd, os.fsencode(str(directory)),
                                        _MODIFY | _MOVED_TO | _CREATE)
        assert watch >= 0
        self.end = os.pidfd_open(process.pid) if process is not None else -1

    def wait(self, seconds):
        """Until something has changed, `seconds` at most."""
        ready, _, _ = select.select([fd for fd in (self.fd, self.end) if fd >= 0], [], [],
                                    seconds)
        if self.fd in ready:
            os.read(self.fd, 65536)

    def until(self, condition, limit, step=5.0, text=lambda: ""):
        """The first true value of condition(), which is asked after each change, and every
        `step` s."""
        end = time.monotonic() + limit
        while not (value := condition()):
            left = end - time.monotonic()
            assert left > 0, f"not within {limit} s\n{text()}"
            if self.end >= 0 and select.select([self.end], [], [], 0)[0]:
                value = condition()
                assert value, f"the job has ended\n{text()}"
                return value
            self.wait(min(step, left))
        return value

    def close(self):
        for fd in (self.fd, self.end):
            if fd >= 0:
                os.close(fd)
        self.fd = self.end = -1
