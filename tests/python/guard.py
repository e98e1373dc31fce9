"""Ends what a test session has started when the session ends, however it does.

    guard.start()        in conftest.py: a process that reads a pipe which only pytest holds

Whatever inherits the environment of pytest carries a mark.  When pytest is gone, killed or
not, the guard kills what carries it: ranks in groups and sessions of their own, too.
"""
import os
import pathlib
import signal
import subprocess
import sys
import time

NAME = "HVD_TEST_SESSION"
_held = []                              # the pipe: its end is that of pytest


def start():
    os.environ[NAME] = f"{os.getpid()}-{time.monotonic_ns()}"
    _held.append(subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE,
                                  stdout=subprocess.DEVNULL, start_new_session=True))


def marked(mark):
    """Processes with that mark, but this one."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def main():
    mark = f"{NAME}={os.environ[NAME]}".encode()
    sys.stdin.buffer.read()
    time.sleep(0.5)                     # for those who are about to end in order
    end = time.monotonic() + 10
    while (left := marked(mark)) and time.monotonic() < end:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)


if __name__ == "__main__":
    main()
