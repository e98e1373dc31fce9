"""A command whose whole process group ends with it.

Imported by: programs written for Horovod 0.28 only.
"""
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Optional, Sequence

GRACEFUL_TERMINATION_TIME_S = 5


def _forward(pipe: Any, stream: Any, prefix: Optional[str], timestamps: bool) -> None:
    for line in iter(pipe.readline, b""):
        text = line.decode("utf-8", "replace")
        if prefix is not None:
            text = f"{time.asctime() if timestamps else ''}{prefix}:{text}"
        stream.write(text)
        stream.flush()
    pipe.close()


def _end_group(process: subprocess.Popen) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(GRACEFUL_TERMINATION_TIME_S)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def _watch(event: threading.Event, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if event.wait(1):
            _end_group(process)


def execute(command: Any, env: Optional[dict] = None, stdout: Any = None, stderr: Any = None,
            index: Optional[int] = None, events: Optional[Sequence[threading.Event]] = None,
            prefix_output_with_timestamp: bool = False) -> int:
    """Runs a command (a shell's line or a list of words) and returns its code, 128 + n when
    signal n ended it.  Setting one of the events ends its whole group."""
    process = subprocess.Popen(command, shell=isinstance(command, str), env=env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               start_new_session=True)
    threads = [threading.Thread(target=_forward, daemon=True, args=(
        pipe, stream or default, None if index is None else f"[{index}]<{name}>",
        prefix_output_with_timestamp))
        for pipe, stream, default, name in ((process.stdout, stdout, sys.stdout, "stdout"),
                                            (process.stderr, stderr, sys.stderr, "stderr"))]
    threads += [threading.Thread(target=_watch, daemon=True, args=(event, process))
                for event in events or ()]
    for thread in threads:
        thread.start()
    try:
        code = process.wait()
    finally:
        _end_group(process)
    for thread in threads[:2]:
        thread.join(1)
    return code if code >= 0 else 128 - code
