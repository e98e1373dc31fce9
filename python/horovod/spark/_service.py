"""The driver's end of the connections to Spark tasks; what they say is in ``_task.py``.

A thread accepts, one thread per connection receives.  Events go into one queue, which the
thread that runs the job reads; output goes to the streams at once.
"""
import datetime
import logging
import queue
import socket
import threading
from typing import Any, Optional

from horovod.runner import _channel

log = logging.getLogger("horovod.spark")
STRANGERS = 64                  # connections that have not proved the key, at one time


class Task:
    """A task that has registered.  ``rank`` is -1 until it has a process, ``host`` its name for
    the elastic driver."""

    def __init__(self, channel: _channel.Channel, place: dict) -> None:
        self.channel = channel
        self.place = place
        self.rank = -1
        self.host = ""

    def __str__(self) -> str:
        return (f"task {self.place['index']} on {self.place['hostname']} (pid "
                f"{self.place['pid']})")

    def tell(self, kind: str, body: Any = b"", **head: Any) -> bool:
        """Sends; False: the task has gone, an event tells it."""
        try:
            self.channel.send(kind, body, **head)
        except _channel.ChannelClosed:
            return False
        return True


class Output:
    """Lines of the ranks into the streams of the caller."""

    def __init__(self, stdout: Any, stderr: Any, with_time: bool) -> None:
        self._streams = {"stdout": stdout, "stderr": stderr}
        self._with_time = with_time
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return any(stream is not None for stream in self._streams.values())

    def write(self, rank: int, name: str, data: bytes) -> None:
        stream = self._streams.get(name)
        if stream is None:
            return
        now = datetime.datetime.now().ctime() if self._with_time else ""
        text = data.decode("utf-8", "replace")
        lines = "".join(f"{now}[{rank}]<{name}>:{line}\n" for line in text.split("\n")
                        [:-1 if text.endswith("\n") else None])
        with self._lock:
            try:
                stream.write(lines)
                stream.flush()
            except (OSError, ValueError):           # closed by the caller
                self._streams[name] = None


class Service:
    """Accepts the tasks of one job.  ``events`` has (kind, task, head, body) with the kinds
    register, exit and lost."""

    def __init__(self, key: bytes, bind: str, output: Output) -> None:
        self.events: "queue.SimpleQueue[tuple]" = queue.SimpleQueue()
        self._key = _channel.derive(key, "spark tasks")
        self._output = output
        self._strangers = threading.Semaphore(STRANGERS)
        self._lock = threading.Lock()               # guards _open
        self._open: Optional[set] = set()           # None: closed
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, 0), family=family, backlog=512)
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True,
                                          name="horovod-spark-service")]
        self._threads[0].start()

    def close(self) -> None:
        """Ends all connections and threads."""
        with self._lock:
            ours, self._open = self._open or set(), None
        for sock in ours:
            _end(sock)
        _end(self._listener)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except OSError:
                if self._open is None:
                    return
                continue
            self._strangers.acquire()
            with self._lock:
                if self._open is None:
                    sock.close()
                    return
                self._open.add(sock)
            thread = threading.Thread(target=self._serve, args=(sock, peer), daemon=True,
                                      name="horovod-spark-task")
            self._threads = [t for t in self._threads if t.is_alive()] + [thread]
            thread.start()

    def _serve(self, sock: socket.socket, peer: Any) -> None:
        task = None
        try:
            try:
                channel = _channel.accept(sock, self._key)
            finally:
                self._strangers.release()
            head, _ = channel.receive()
            task = Task(channel, head)
            self.events.put(("register", task, head, b""))
            while True:
                self._take(task, *channel.receive())
        except (_channel.ChannelClosed, ValueError, KeyError) as e:
            if task is not None:
                self.events.put(("lost", task, {"why": str(e)}, b""))
            elif self._open is not None:
                log.warning("a connection from %s was refused: %s", peer[0], e)
        finally:
            with self._lock:
                if self._open is not None:
                    self._open.discard(sock)
            _end(sock)

    def _take(self, task: Task, head: dict, body: bytes) -> None:
        if head["kind"] == "output":
            self._output.write(task.rank, head["stream"], body)
        else:
            self.events.put((head["kind"], task, head, body))


def _end(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    sock.close()
