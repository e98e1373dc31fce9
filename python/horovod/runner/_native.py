"""Runs the native launcher ``horovodrun`` as a child and takes what it delivers.

Nothing here touches signal handlers, so that it works in notebooks and in any thread.
"""
import codecs
import os
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
import threading
from typing import Any, Callable, Optional, Sequence

from horovod.common.advice import advised
from horovod.runner._outcome import Ends

RESULT, EXIT, TEXT, DONE = 13, 14, 15, 16       # frames of src/launch/agent_wire.h
HEAD = struct.Struct("<IB")
ERROR = "horovodrun: error: "
FAILED = "Horovod detected that one or more processes exited with non-zero status"


def launcher() -> str:
    """The path of horovodrun: of this installation, else of PATH."""
    for folder in (sysconfig.get_path("scripts"), os.path.dirname(sys.executable)):
        path = os.path.join(folder, "horovodrun")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("horovodrun")
    if found is None:
        raise RuntimeError(advised(
            "horovodrun is neither in this installation nor on PATH (an "
            "editable install has none: use pip install .)"))
    return found


class Outcome(Ends):
    """What a launch has left: its code, and from workers results and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.code = 0
        self.error: Optional[str] = None
        self.tail = ""                  # the end of what the launcher has printed

    def reason(self) -> str:
        """Why no worker was started."""
        at = self.tail.find(FAILED)
        if at >= 0 and self.error is None:          # of a command, whose ends nobody tells
            return self.tail[at:]
        said = [line for line in self.tail.splitlines() if line.startswith(ERROR)]
        return self.error or (said[-1][len(ERROR):] if said else
                              f"horovodrun failed with exit code {self.code}")

    def take(self, kind: int, body: bytes) -> None:
        """One frame of the launcher."""
        if kind == RESULT:
            self.results.setdefault(struct.unpack_from("<I", body)[0], bytearray()).extend(body[4:])
        elif kind == EXIT:
            rank, code, number = struct.unpack_from("<III", body)
            self.ends.append((rank, code, number, body[12:].decode("utf-8", "replace")))
        elif kind == DONE:
            self.verdict = struct.unpack_from("<I", body)[0]
        elif kind == TEXT:
            self.error = self.error or body.decode("utf-8", "replace")


def _read_frames(fd: int, take: Callable[[int, bytes], None]) -> None:
    with os.fdopen(fd, "rb") as file:
        while len(head := file.read(HEAD.size)) == HEAD.size:
            length, kind = HEAD.unpack(head)
            take(kind, file.read(length - 1))


def _pump(fd: int, to: tuple[Any, Outcome]) -> None:
    """Bytes of the launcher to a stream of the caller, as they come."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    stream, outcome = to
    try:
        while data := os.read(fd, 65536):
            text = decoder.decode(data)
            outcome.tail = (outcome.tail + text)[-4096:]
            if stream is not None:
                stream.write(text)
                stream.flush()
    except (OSError, ValueError):
        while os.read(fd, 65536):       # the stream is closed: the launcher must not block
            pass
    finally:
        os.close(fd)


def memory_file(data: bytes) -> int:
    """A descriptor of a file in memory with these bytes."""
    fd = os.memfd_create("horovod-function", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]
    return fd


def execute(options: Sequence[str], command: Sequence[str], payload: Optional[bytes] = None,
            env: Optional[dict] = None, stdout: Any = None, stderr: Any = None) -> Outcome:
    """Runs ``horovodrun options command``; with a payload the workers may read it and
    deliver results.  Its output goes to the streams (default: sys.stdout, sys.stderr)."""
    outcome, words, passed = Outcome(), [launcher(), *options], []
    readers: list[tuple[Callable, int, Any]] = []
    if payload is not None:
        memory, (read, write) = memory_file(payload), os.pipe()
        passed = [memory, write]
        words += ["--payload-fd", str(memory), "--result-fd", str(write)]
        readers.append((_read_frames, read, outcome.take))
    out, err = os.pipe(), os.pipe()
    readers += [(_pump, out[0], (sys.stdout if stdout is None else stdout, Outcome())),
                (_pump, err[0], (sys.stderr if stderr is None else stderr, outcome))]
    try:
        # A session of its own: Ctrl-C comes to us, and we tell the launcher.
        process = subprocess.Popen([*words, "--", *command], env=env, stdout=out[1],
                                   stderr=err[1], pass_fds=passed, start_new_session=True)
    finally:
        for fd in (*passed, out[1], err[1]):
            os.close(fd)
    threads = [threading.Thread(target=target, args=(fd, to), daemon=True)
               for target, fd, to in readers]
    for thread in threads:
        thread.start()
    outcome.code = _wait(process)
    for thread in threads:
        thread.join()
    return outcome


def _wait(process: subprocess.Popen) -> int:
    try:
        return process.wait()
    except BaseException:
        # Ctrl-C, or an exception a notebook puts into this thread: end the job first.
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise
