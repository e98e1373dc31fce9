"""Elastic trainings that workers run; they import no framework.

A training is a row of steps, each an allreduce and a commit.  ``script`` says what happens at
a step: {5: ("size", 3)} waits until the job has three workers, {8: ("kill", "host-2")} kills
whoever is on that host, once, {8: ("kill", 1)} the worker of that rank; "raise" likewise;
("file", path) waits for a file, ("started", 4) for the fourth process and not to be alone;
("call", f) calls something on every rank.  What happened is in a journal, a line of JSON per
event, and ``check`` looks whether anything was lost or done twice.
"""
import json
import os
import pathlib
import pickle
import signal
import time

import numpy as np
import ray

import horovod.numpy as hvd
from horovod.common.delegates import _basics
from horovod.common.elastic import ObjectState, run_fn

LIMIT_S = 90.0


class Journal:
    def __init__(self, path):
        self.path = pathlib.Path(path)

    def write(self, **event):
        with open(self.path, "a") as file:
            file.write(json.dumps(dict(event, pid=os.getpid(), time=time.time())) + "\n")

    def read(self, what=None):
        if not self.path.exists():
            return []
        lines = [line for line in self.path.read_text().splitlines(True) if line[-1] == "\n"]
        events = [json.loads(line) for line in lines]
        return [e for e in events if what in (None, e["what"])]

    def wait(self, what, count=1):
        end = time.monotonic() + LIMIT_S
        while len(self.read(what)) < count:
            assert time.monotonic() < end, f"{what} never came: {self.read()[-5:]}"
            time.sleep(0.02)
        return self.read(what)

    def check(self, steps):
        """The sizes at each step."""
        done = {}
        for e in self.read("step"):
            done.setdefault(e["step"], []).append(e)
        assert sorted(done) == list(range(steps)), sorted(done)
        for step, events in done.items():
            assert len({e["value"] for e in events}) == 1, (step, events)
            assert sorted(e["rank"] for e in events) == list(range(events[0]["size"])), events
        return [done[step][0]["size"] for step in range(steps)]


def broadcast_object(value, root_rank=0):
    data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
    length = hvd.broadcast(np.array([len(data)]), root_rank, name="length")
    buffer = data.copy() if hvd.rank() == root_rank else np.zeros(int(length[0]), np.uint8)
    return pickle.loads(hvd.broadcast(buffer, root_rank, name="object").tobytes())


def _until(state, condition):
    end = time.monotonic() + LIMIT_S
    while True:
        go_on, late = broadcast_object((condition(), time.monotonic() > end))
        if go_on:
            return
        assert not late, "what the script waits for never came"
        time.sleep(0.02)
        state.commit()


def _hit(journal, state, what, whom):
    """Once, in the life of the job."""
    own = os.environ["HOROVOD_HOSTNAME"] if isinstance(whom, str) else hvd.rank()
    if own != whom or journal.read(what):
        return
    journal.write(what=what, step=state.step)
    if what == "kill":
        time.sleep(0.2)                 # the others are in the allreduce by then
        os.kill(os.getpid(), signal.SIGKILL)
    raise ZeroDivisionError(f"rank {hvd.rank()} divides by zero")


def training(path, steps, script=None, pause=0.0):
    journal, script = Journal(path), script or {}
    hvd.init()
    journal.write(what="started", host=os.environ["HOROVOD_HOSTNAME"],
                  node=ray.get_runtime_context().get_node_id())

    def train(state):
        journal.write(what="enter", rank=hvd.rank(), size=hvd.size(), step=state.step)
        while state.step < steps:
            what, argument = script.get(state.step, ("", None))
            if what == "size":
                journal.write(what="wait", step=state.step)
                _until(state, lambda: hvd.size() == argument)
            elif what == "file":
                journal.write(what="wait", step=state.step)
                _until(state, lambda: os.path.exists(argument))
            elif what == "started":
                journal.write(what="wait", step=state.step)
                _until(state, lambda: len(journal.read("started")) >= argument and
                       hvd.size() > 1)
            elif what == "call":
                argument()
            elif what:
                _hit(journal, state, what, argument)
            total = hvd.allreduce(np.full(1, state.value + 1.0), name="step")
            state.value = float(total[0])
            journal.write(what="step", rank=hvd.rank(), size=hvd.size(), step=state.step,
                          value=state.value)
            state.step += 1
            time.sleep(pause)
            state.commit()

    state = ObjectState(broadcast_object, hvd.rank, step=0, value=0.0)
    run_fn(train, _basics._reset)(state)
    journal.write(what="finished")
    return hvd.rank(), hvd.size(), state.value


def kill_rank_of(journal, rank):
    """From outside: the process that has this rank now."""
    pid = [e for e in journal.read("step") if e["rank"] == rank][-1]["pid"]
    os.kill(pid, signal.SIGKILL)
    return pid


def say_hello():
    hvd.init()
    print("hello from", ["zero", "one"][hvd.rank()])    # Ray joins lines of equal words
    return hvd.rank()


def devices():
    """(local rank, visible GPUs, the own ones)"""
    hvd.init()
    return hvd.local_rank(), os.environ["CUDA_VISIBLE_DEVICES"].split(","), \
        [str(gpu) for gpu in ray.get_gpu_ids()]


def fail_before_init():
    raise LookupError("there is no data anywhere")


class Counter:
    """An executable that meets the others in its constructor."""

    def __init__(self, start):
        hvd.init()
        self.value = start + int(hvd.allreduce(np.ones(1), op=hvd.Sum, name="count")[0])
