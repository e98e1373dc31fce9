"""Starts jobs by hand, without horovodrun: ranks as child processes of the test.

``Pool`` keeps N ranks alive and runs functions of test modules in them, one after the
other, so that torch is imported once per rank and not once per test.  A rank that does not
answer in time, or dies, takes the pool with it; the next test gets a new one.
"""
import contextlib
import json
import os
import pathlib
import random
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Of time limits: they end what hangs, and a busy machine is no hang.
FACTOR = float(os.environ.get("CHECK_LIMIT_FACTOR", "1"))


def free_port():
    """Below the range of clients, one of which could get it before rank 0 listens there."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def environment(rank, size, port, key_file, extra=()):
    """What a launcher gives to a rank, see docs/config.md."""
    result = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    result.update({
        "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size),
        "HOROVOD_LOCAL_RANK": str(rank), "HOROVOD_LOCAL_SIZE": str(size),
        "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_RENDEZVOUS_SERVE": "1" if rank == 0 else "0",
        "HOROVOD_KEY_FILE": key_file, "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_RECORDER_DIR": os.path.dirname(key_file),      # removed with the job
        "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1"})
    result["PYTHONPATH"] = os.pathsep.join(
        [str(HERE)] + [p for p in result.get("PYTHONPATH", "").split(os.pathsep) if p])
    result.update(extra)
    return result


def key_file(directory):
    path = os.path.join(directory, "key")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


class Job:
    """N processes running one command; their output is kept."""

    def __init__(self, size, command, extra=(), stdin=None, pass_fds=(), per_rank=None):
        self.directory = tempfile.TemporaryDirectory(prefix="hvd-test-")
        self.size = size
        key, port = key_file(self.directory.name), free_port()
        self.outputs, self.processes = [], []
        for rank in range(size):
            self.outputs.append(open(os.path.join(self.directory.name, f"out.{rank}"), "w+b"))
            env = environment(rank, size, port, key, extra)
            env.update(per_rank(rank) if per_rank else {})
            self.processes.append(subprocess.Popen(
                command, env=env, stdin=stdin or subprocess.DEVNULL,
                stdout=self.outputs[rank] if stdin is None else subprocess.PIPE,
                stderr=self.outputs[rank], preexec_fn=os.setpgrp, cwd=ROOT))

    def output(self, rank):
        self.outputs[rank].flush()
        with open(self.outputs[rank].name, "rb") as file:
            return file.read().decode(errors="replace")

    def everything(self):
        return "".join(f"--- rank {r}\n{self.output(r)}" for r in range(self.size))

    def wait(self, limit=60.0):
        """The exit codes; kills what is left after the limit."""
        limit *= FACTOR
        end = time.monotonic() + limit
        try:
            return [p.wait(max(0.0, end - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"not finished in {limit} s\n{self.everything()}") from None

    def kill(self):
        for p in self.processes:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
            p.wait()
            for stream in (p.stdin, p.stdout):
                if stream is not None:
                    stream.close()

    def close(self):
        self.kill()
        for file in self.outputs:
            file.close()
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Pool:
    """Ranks that wait for functions to run."""

    def __init__(self, size, extra=()):
        self.job = Job(size, [sys.executable, str(HERE / "worker.py")], extra,
                       stdin=subprocess.PIPE)
        self.size = size
        self.broken = False

    def run(self, module, name, kwargs, limit):
        """Runs module.name(**kwargs) in every rank; raises what a rank has raised."""
        start = [len(self.job.output(r)) for r in range(self.size)]
        line = (json.dumps([module, name, kwargs]) + "\n").encode()
        for p in self.job.processes:
            p.stdin.write(line)
            p.stdin.flush()
        answers = self._answers(time.monotonic() + limit)
        failed = {r: a for r, a in answers.items() if a != "ok"}
        if failed or len(answers) < self.size:
            self.broken = True
            missing = [r for r in range(self.size) if r not in answers]
            text = "".join(f"--- rank {r}: {a}\n" for r, a in sorted(failed.items()))
            text += "".join(f"--- output of rank {r}\n{self.job.output(r)[start[r]:]}"
                            for r in range(self.size))
            if missing:
                text = f"no answer from ranks {missing} in {limit} s\n{text}"
            raise AssertionError(text)

    def _answers(self, end):
        answers, selector = {}, selectors.DefaultSelector()
        for rank, p in enumerate(self.job.processes):
            selector.register(p.stdout, selectors.EVENT_READ, rank)
        while len(answers) < self.size and time.monotonic() < end:
            for key, _ in selector.select(max(0.0, end - time.monotonic())):
                line = key.fileobj.readline()
                selector.unregister(key.fileobj)
                answers[key.data] = json.loads(line) if line else "the process has ended"
                if answers[key.data] != "ok":       # the others may wait for it for ever
                    end = min(end, time.monotonic() + 10)
        selector.close()
        return answers

    def close(self):
        for p in self.job.processes:
            if p.poll() is None and not self.broken:
                p.stdin.close()
                try:
                    p.wait(20)
                except subprocess.TimeoutExpired:
                    pass
        self.job.close()
