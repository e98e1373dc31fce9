"""HorovodTrainer on a Ray of this machine, one fit() each.  The loops are in train_loops.py.

Drivers that have to be processes of their own join the Ray of the test: so they show that
what a driver sets reaches workers of a cluster that was there before it.
"""
import base64
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import unittest.mock

import numpy as np
import pytest

import ray
import ray_support
import ray.experimental.internal_kv as kv
from ray.train import FailureConfig, RunConfig, ScalingConfig

import horovod.numpy as hvd
import train_loops
from horovod import _core
from horovod.ray import _train_backend
from horovod.ray._train_backend import HorovodBackend
from horovod.ray.train import HorovodConfig, HorovodTrainer

ROOT = pathlib.Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(180)


def run(loop, tmp_path, config=None, max_failures=0, workers=2, use_gpu=False, **kwargs):
    trainer = HorovodTrainer(
        loop, train_loop_config=dict(config or {}, notes=str(tmp_path)),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(name=loop.__name__, storage_path=str(tmp_path / "storage"),
                             failure_config=FailureConfig(max_failures=max_failures)),
        **kwargs)
    return trainer.fit()


def notes(directory, name):
    return [json.loads(path.read_text()) for path in directory.glob(f"{name}.*")]


def eventually(condition, limit, what):
    end = time.monotonic() + limit
    while not (result := condition()):
        assert time.monotonic() < end, f"not in {limit} s: {what}"
        time.sleep(0.05)
    return result


def files_with(patterns, folder):
    """Of the session: logs, sockets' neighbours, everything that is a file."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            found += [(str(path), p) for p in patterns if p in data]
    return found


def nothing_is_held():
    """No worker, no placement group: all CPUs are free."""
    end = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 8:
        assert time.monotonic() < end, f"still held: {holders()}"
        time.sleep(0.1)


def holders():
    from ray._private.state import state
    groups = [g for g in state.placement_group_table().values() if g["state"] != "REMOVED"]
    actors = [a for a in state.actor_table(None).values() if a["State"] != "DEAD"]
    return ray.available_resources(), groups, actors


def what_ray_tells():
    """Tables, timeline and what the dashboard shows of a training run."""
    from ray._private.state import state
    from ray.train.v2._internal.state.state_actor import get_state_actor
    actor = get_state_actor()
    runs = ray.get([actor.get_train_runs.remote(), actor.get_train_run_attempts.remote()])
    ray.kill(actor)
    store = [kv._internal_kv_get(name, namespace=namespace) for namespace in (None, b"fun")
             for name in kv._internal_kv_list(b"", namespace=namespace)]
    return repr([state.actor_table(None), state.job_table(), state.node_table(),
                 state.placement_group_table(), ray.timeline(), runs, store])


def test_dataset_checkpoint_context_variables_and_no_key_anywhere(shared_ray, tmp_path,
                                                                  monkeypatch):
    key = _core.generate_key()
    shown = [key.hex(), base64.b64encode(key).decode(), repr(key)[2:-1]]
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "2.5")      # after Ray has started
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "debug")
    monkeypatch.setenv("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")
    data = ray.data.from_items([{"x": float(x)} for x in range(32)])
    backwards = [text[::-1] for text in shown]           # Ray shows what a loop is given
    result = run(train_loops.whole, tmp_path, {"backwards": backwards}, workers=(1, 2),
                 datasets={"train": data}, horovod_config=HorovodConfig(key=key))
    assert result.metrics == {"rows": 32, "sum": sum(range(32)), "size": 2, "step": 1}
    with result.checkpoint.as_directory() as directory:
        assert pathlib.Path(directory, "step").read_text() == "1"
    assert result.return_value == {"cycle": "2.5", "rank": "0", "shown": []}
    patterns = [key, *(text.encode() for text in shown)]
    logs = ray_support.folder() / "r"
    assert list(logs.rglob("*.log")), "there is something to look at"
    assert files_with(patterns, logs) == []
    assert files_with(patterns, tmp_path) == []
    told = what_ray_tells()
    assert "RayTrainWorker" in told and "placement_group_timeout_s" in told
    assert not any(text in told for text in shown)


def test_an_exception_is_told_to_those_who_wait_and_to_the_caller(shared_ray, tmp_path):
    """Two attempts: what the first one failed of is known to its ranks only."""
    with pytest.raises(ray.train.WorkerGroupError) as caught:
        run(train_loops.failing, tmp_path, use_gpu=True, max_failures=1)
    told = notes(tmp_path, "told")
    assert len(told) == 1 and "raised ValueError: rank 1 has no data" in told[0]["why"], told
    failures = {rank: str(error) for rank, error in caught.value.worker_failures.items()}
    text = str(caught.value)
    assert re.search(r"ValueError: rank 1 fails on purpose, devices \d,\d", text), text
    assert 'raise ValueError(f"rank 1 fails' in text, "the line of the loop"
    assert "the training loop of rank 1 raised ValueError" in failures[0], failures


def test_a_killed_worker_in_a_collective_resumes_within_15_s(shared_ray, tmp_path):
    # Before that, a worker does not answer in on_start: that costs nothing of max_failures.
    begin = time.time()
    result = run(train_loops.killed, tmp_path, max_failures=1,
                 horovod_config=train_loops.HesitantConfig())
    assert result.metrics["step"] == 5 and result.metrics["value"] == 10
    (kill,), resumed = notes(tmp_path, "killed"), notes(tmp_path, "resumed")
    assert sorted(r["rank"] for r in resumed) == [0, 1]
    # A report that Ray has not polled yet when a worker dies is lost: one step earlier.
    assert {r["step"] for r in resumed} <= {3, 4} and {r["size"] for r in resumed} == {2}
    assert kill["generation"] == "2" and {r["generation"] for r in resumed} == {"3"}
    took = max(r["time"] for r in resumed) - kill["time"]
    # A machine on which the first start takes longer than that is busy with other things.
    first = min(n["time"] for n in notes(tmp_path, "started")) - begin
    assert took < max(15, first), \
        f"{took:.1f} s from the kill to the first collective of the new job"
    nothing_is_held()
    print(f"resumed {took:.1f} s after the kill; the first start took {first:.1f} s")


# -- shutdown while a rank is blocked ---------------------------------------------------

class Worker:
    """As the worker of Ray Train: functions in its main thread, the loop in another."""

    def __init__(self):
        self.outcome = None

    def execute(self, fn, *args):
        return fn(*args)

    def block(self, where):
        def loop():
            try:
                hvd.init()
                self.outcome = "in the job"
                hvd.allreduce(np.ones(4), name="one comes")
            except Exception as error:
                self.outcome = f"{type(error).__name__}: {error}"
        if where == "init":
            self.outcome = "in init"
        threading.Thread(target=loop, daemon=True).start()

    def join(self):
        hvd.init()

    def told(self):
        return self.outcome


class Group:
    def __init__(self, size):
        # __main__ and test modules are unknown to workers: by value
        self.actors = [ray.remote(Worker).options(num_cpus=0).remote() for _ in range(size)]

    def __len__(self):
        return len(self.actors)

    def execute_async(self, fn, *args):
        return [actor.execute.remote(fn, *args) for actor in self.actors]

    def execute_single_async(self, rank, fn, *args):
        return self.actors[rank].execute.remote(fn, *args)


@pytest.fixture
def group(shared_ray):
    result = Group(2)
    yield result
    for actor in result.actors:
        ray.kill(actor)


def test_on_shutdown_wakes_blocked_ranks(group):
    backend, config = HorovodBackend(), HorovodConfig(timeout_s=60)
    backend.on_start(group, config)
    ray.get(group.actors[0].block.remote("collective"))
    ray.get(group.actors[1].join.remote(), timeout=60)
    eventually(lambda: ray.get(group.actors[0].told.remote()) == "in the job", 30, "init")
    time.sleep(0.2)                             # the collective begins
    assert ray.get(group.actors[0].told.remote()) == "in the job"
    shut(backend, group, config)

    backend.on_start(group, config)             # and a rank that waits in hvd.init()
    ray.get(group.actors[0].block.remote("init"))
    eventually(lambda: "waiting" in backend._coordinator.status(), 30, "rank 0 has come")
    shut(backend, group, config)


def shut(backend, group, config):
    coordinator = backend._coordinator
    start = time.monotonic()
    with unittest.mock.patch.object(_train_backend, "_ABORT_S", 60):
        backend.on_shutdown(group, config)
    assert time.monotonic() - start < 30, "it does not wait for what does not end"
    assert coordinator.rendezvous is None and backend._coordinator is None
    told = eventually(lambda: (t := ray.get(group.actors[0].told.remote())) and "Error" in t
                      and t, 30, "the blocked rank wakes up")
    assert "HorovodInternalError" in told and "Ray Train has ended this attempt" in told


# -- drivers of their own ---------------------------------------------------------------

def driver(command, **variables):
    """A process that joins the Ray of the test."""
    return subprocess.Popen(
        [sys.executable, *command], text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
        env=dict(os.environ, RAY_ADDRESS=ray.get_runtime_context().gcs_address, **variables))


def finish(process, limit=150):
    try:
        return process.communicate(timeout=limit)[0]
    finally:
        process.kill()
        process.wait()


def listening(addr, port):
    with socket.socket() as s:
        s.settimeout(1)
        return s.connect_ex((addr, port)) == 0


def test_ctrl_c_leaves_nothing(shared_ray, tmp_path):
    code = textwrap.dedent(f"""
        import train_loops
        from ray.train import RunConfig, ScalingConfig
        from ray.train.horovod import HorovodTrainer
        HorovodTrainer(train_loops.endless, train_loop_config={{"notes": {str(tmp_path)!r}}},
                       scaling_config=ScalingConfig(num_workers=2),
                       run_config=RunConfig(storage_path={str(tmp_path / "s")!r})).fit()
    """)
    memory = set(os.listdir("/dev/shm"))
    process = driver(["-c", code])
    try:
        eventually(lambda: process.poll() is not None or len(notes(tmp_path, "running")) == 2,
                   100, "two workers run")
        running = notes(tmp_path, "running")
        assert len(running) == 2, finish(process)
        place = running[0]["addr"], running[0]["port"]
        assert listening(*place)
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        text = finish(process)
    for worker in running:
        eventually(lambda: not os.path.exists(f"/proc/{worker['pid']}"), 10,
                   f"rank {worker['rank']} has gone\n{text}")
    eventually(lambda: not listening(*place), 10, "the rendezvous has gone")
    assert {name for name in os.listdir("/dev/shm") if "hvd" in name or "horovod" in name} \
        <= memory
    nothing_is_held()


@pytest.mark.parametrize("v2", ["1", "0"], ids=["v2", "v1"])
def test_quick_start(shared_ray, tmp_path, v2):
    example = ROOT / "examples/ray/train_quick_start.py"
    process = driver([str(example), "--storage", str(tmp_path)], RAY_TRAIN_V2_ENABLED=v2)
    text = finish(process)
    assert process.returncode == 0, text
    assert re.search(r"loss fell from [\d.]+ to [\d.]+ on 2 workers", text), text
    name = "ray_train_run-*" if v2 == "1" else "HorovodTrainer_*"
    assert list(tmp_path.glob(name)), "the trainer of that version has run"


# -- local mode -------------------------------------------------------------------------

def test_local_mode(shared_ray, tmp_path):
    result = run(train_loops.local, tmp_path, workers=0)
    assert result.return_value == [1, 0, 1, 0]
    assert result.metrics == {"total": 1.0, "step": 7} and result.checkpoint is not None
    assert not hvd.is_initialized(), "the loop has left the job it made"


def test_local_mode_under_horovodrun(shared_ray, tmp_path):
    code = textwrap.dedent(f"""
        import train_loops, pathlib, os
        from ray.train import RunConfig, ScalingConfig
        from ray.train.horovod import HorovodTrainer
        trainer = HorovodTrainer(train_loops.local, train_loop_config={{}},
                                 scaling_config=ScalingConfig(num_workers=0))
        result = trainer.fit()
        pathlib.Path({str(tmp_path)!r}, os.environ["HOROVOD_RANK"]).write_text(
            repr((result.return_value, result.metrics["total"])))
    """)
    launcher = pathlib.Path(sys.executable).with_name("horovodrun")
    done = subprocess.run([launcher, "-np", "2", sys.executable, "-c", code], text=True,
                          capture_output=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == \
        [repr(([2, rank, 2, rank], 2.0)) for rank in range(2)]
