"""What runs in a Spark task: starts training processes for the driver and looks after them.

The task connects to the driver's service, says where it is, and does what it is told:

    task -> driver      register {place}, output {stream} + a line, exit {code, signal} + result
    driver -> task      start {env, executable, output} + function, stop {grace_s},
                        end {error}: the task is over, refused {why}

1. Everything happens in one loop of one thread: a Python worker serves many tasks, and
   nothing of ours may be left in it.
2. The training process stays in the worker's process group (which Spark ends with SIGHUP
   when an executor dies) and follows the worker (HOROVOD_RUN_PARENT_FD).
3. A driver that has gone ends the training process.
4. The job key comes in the closure of the task, never over the service's connection, and
   goes to the process as src/rendezvous/key_descriptor.c says: in a sealed memfd, and for
   processes that it starts itself through a socket that answers to its descendants.
"""
import fcntl
import os
import select
import signal
import socket
import subprocess
import time
from typing import Any, Optional

from horovod.common.advice import advised
from horovod.runner import _channel, _message
from horovod.runner._key_desk import PREFIX, KeyDesk
from horovod.runner.common.util.env import IDENTITY

CONNECT_S = 30.0
GRACE_S = 2.0
LINE_LIMIT = 1 << 16            # longer lines are forwarded in parts
DRAIN_S = 1.0                   # for output of a process that has ended
# What belongs to Spark's Python worker alone.
_OF_SPARK = {"PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_PORT",
             "PYTHON_WORKER_FACTORY_SOCK_PATH", "PYTHON_WORKER_FACTORY_SOCK_DIR",
             "SPARK_AUTH_SOCKET_TIMEOUT", "_PYSPARK_DRIVER_CONN_INFO_PATH",
             "PYTHON_UNIX_DOMAIN_ENABLED"}


class Refused(RuntimeError):
    """The driver does not want this task."""


def serve(index: int, address: tuple, key: bytes) -> None:
    """Everything a task does.  Returns when the driver has what it wants."""
    from pyspark import TaskContext
    context = TaskContext.get()
    try:
        channel = _channel.connect(address, _channel.derive(key, "spark tasks"), CONNECT_S)
    except _channel.ChannelClosed as e:
        raise RuntimeError(advised(
            f"the job of this task is over, or its driver is out of reach "
            f"({e})")) from None
    try:
        channel.send("register", **_place(context, index, channel))
        _Task(channel, key, context).run()
    finally:
        channel.close()


def _place(context: Any, index: int, channel: _channel.Channel) -> dict:
    """Where this task is."""
    from horovod.runner.util.network import interface_of
    from horovod.spark.common.util import host_hash
    own = channel.own_address()
    gpus = context.resources().get("gpu") if context is not None else None
    return {"index": index, "host_hash": host_hash(), "hostname": socket.gethostname(),
            "pid": os.getpid(), "address": own, "interface": interface_of(own),
            "attempt": context.attemptNumber(), "task": context.taskAttemptId(),
            "gpus": list(gpus.addresses) if gpus is not None else []}


class _Task:
    def __init__(self, channel: _channel.Channel, key: bytes, context: Any) -> None:
        self.channel, self.key, self.context = channel, key, context
        self.process: Optional[_Process] = None
        self.over = False

    def run(self) -> None:
        try:
            while not self.over:
                self._turn()
        except _channel.ChannelClosed:
            raise RuntimeError("the driver of this job has gone") from None
        finally:
            if self.process is not None:
                self.process.end(0.0)

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        limit = None
        if self.process is not None:
            limit = self.process.register(poll)
        ready = {fd for fd, _ in poll.poll(limit)}
        if self.process is not None:
            self.process.forward(ready, self.channel)
            if self.process.has_ended():
                self._report()
        if self.channel.fileno() in ready:
            self._obey()

    def _report(self) -> None:
        process, self.process = self.process, None
        assert process is not None
        try:
            process.drain(self.channel)
            code, number = process.code()
            self.channel.send("exit", process.result(), code=code, signal=number)
        finally:
            process.release()

    def _obey(self) -> None:
        function = os.memfd_create("horovod-function", os.MFD_CLOEXEC)
        try:
            head, _ = self.channel.receive(lambda part: _write(function, part))
            kind = head["kind"]
            if kind == "start":
                os.lseek(function, 0, os.SEEK_SET)
                self._start(head, function)
            elif kind == "stop" and self.process is not None:
                self.process.end(head["grace_s"])
            elif kind == "refused":
                raise Refused(head["why"])
            elif kind == "end":
                self.over = True
                if head["error"]:
                    raise RuntimeError(head["error"])
        finally:
            os.close(function)

    def _start(self, head: dict, function: int) -> None:
        try:
            self.process = _Process(head, function, self.key, self.context)
        except OSError as e:
            self.channel.send("exit", code=127, signal=0,
                              why=f"cannot start {head['executable']}: {e}")


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


class _Process:
    """A training process: ``horovod.runner.run_task``."""

    def __init__(self, head: dict, function: int, key: bytes, context: Any) -> None:
        self._result = os.memfd_create("horovod-result", os.MFD_CLOEXEC)
        self._kill_at: Optional[float] = None
        self._streams: dict[int, tuple[str, bytearray]] = {}
        key_fd, self._life = self._key_file(key), os.pipe()
        self._desk = KeyDesk(key)
        passed = [function, self._result, key_fd, self._life[0]]
        pipes = [os.pipe(), os.pipe()] if head["output"] else []
        try:
            self._popen = subprocess.Popen(
                [head["executable"], "-m", "horovod.runner.run_task"],
                env=dict(self._environment(head["env"], context, passed),
                         HOROVOD_KEY_SOCKET=self._desk.name), pass_fds=passed,
                stdin=subprocess.DEVNULL, stdout=pipes[0][1] if pipes else None,
                stderr=pipes[1][1] if pipes else None)
        except BaseException:
            self._desk.close()
            for fd in (self._result, self._life[1], *(r for r, _ in pipes)):
                os.close(fd)
            raise
        finally:
            for fd in (key_fd, self._life[0], *(w for _, w in pipes)):
                os.close(fd)
        for name, (reading, _) in zip(("stdout", "stderr"), pipes):
            os.set_blocking(reading, False)
            self._streams[reading] = name, bytearray()
        self._pidfd = os.pidfd_open(self._popen.pid)

    @staticmethod
    def _key_file(key: bytes) -> int:
        fd = os.memfd_create("horovod-key", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, PREFIX + key)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK |
                    fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        return fd

    @staticmethod
    def _environment(given: dict, context: Any, fds: list) -> dict:
        function, result, key_fd, parent = fds
        env = {name: value for name, value in os.environ.items()
               if name not in _OF_SPARK and name not in IDENTITY}
        # Spark has set it from spark.task.cpus, for its own worker.
        env["OMP_NUM_THREADS"] = str(max(1, context.cpus()))
        return {**env, **given, "HOROVOD_RUN_FUNC_FD": str(function),
                "HOROVOD_RUN_RESULT_FD": str(result), "HOROVOD_KEY_FD": str(key_fd),
                "HOROVOD_RUN_PARENT_FD": str(parent)}

    def register(self, poll: Any) -> Optional[float]:
        """What to wait for; returns how long, in milliseconds."""
        poll.register(self._pidfd, select.POLLIN)
        poll.register(self._desk, select.POLLIN)
        for fd in self._streams:
            poll.register(fd, select.POLLIN)
        if self._kill_at is None:
            return None
        left = self._kill_at - time.monotonic()
        if left <= 0:
            self._kill_at = None
            self._popen.kill()
            return None
        return 1000 * left

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def code(self) -> tuple[int, int]:
        """Exit code as a shell tells it, and signal or 0."""
        code = self._popen.returncode
        return (code, 0) if code >= 0 else (128 - code, -code)

    def end(self, grace_s: float) -> None:
        """Asks the process to end, and makes it end; without grace at once."""
        if grace_s > 0:
            self._popen.send_signal(signal.SIGTERM)
            self._kill_at = time.monotonic() + grace_s
            return
        self._popen.kill()
        self._popen.wait()
        self.release()

    # -- output ---------------------------------------------------------------------

    def forward(self, ready: set, channel: _channel.Channel) -> None:
        """Whole lines that have come; and the key to who has asked."""
        if self._desk.fileno() in ready:
            self._desk.answer(self._popen.pid)
        for fd in [fd for fd in self._streams if fd in ready]:
            self._read(fd, channel)

    def _read(self, fd: int, channel: _channel.Channel) -> bool:
        """False: nothing more now."""
        name, rest = self._streams[fd]
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        rest += data
        if not data:
            if rest:
                channel.send("output", bytes(rest), stream=name)
            del self._streams[fd]
            os.close(fd)
            return False
        cut = rest.rfind(b"\n") + 1 or (len(rest) if len(rest) > LINE_LIMIT else 0)
        if cut:
            channel.send("output", bytes(rest[:cut]), stream=name)
            del rest[:cut]
        return True

    def drain(self, channel: _channel.Channel) -> None:
        """What is left of the output.  A process of its own that the ended one has left may
        hold the pipe: nobody waits for it."""
        end = time.monotonic() + DRAIN_S
        for fd in list(self._streams):
            while self._read(fd, channel) and time.monotonic() < end:
                pass
            if fd in self._streams and self._streams[fd][1]:
                channel.send("output", bytes(self._streams[fd][1]), stream=self._streams[fd][0])

    # -- end ------------------------------------------------------------------------

    def result(self) -> bytes:
        """What the process has sent; empty if it has not."""
        size = os.fstat(self._result).st_size
        os.lseek(self._result, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._result), "rb") as file:
            return file.read(size)

    def release(self) -> None:
        """Closes what is open; safe to call again."""
        fds, self._streams = list(self._streams), {}
        if self._pidfd >= 0:
            fds += [self._pidfd, self._result, self._life[1]]
            self._desk.close()
            self._pidfd = -1
        for fd in fds:
            os.close(fd)
