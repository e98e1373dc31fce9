"""HorovodTrainer with num_workers=(min, max), on Ray nodes that come and go.

What Ray Train V2 (2.60) does, and how long it takes:
1. It asks its AutoscalingCoordinator, an actor that looks at the nodes every 20 s and not
   sooner, and compares every ``elastic_resize_monitor_interval_s`` (60 by default).  So a new
   node is used after up to 20 s, here, and up to 80 s with the defaults.
2. Whatever changes, all workers are ended and started anew.
"""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import ray
import ray_support
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig

import train_loops
from horovod.ray.train import HorovodTrainer

LIMIT_S = 200.0                 # on a machine that does much else


def notes(directory, size):
    """Of the attempts of this size: one list each, by generation."""
    found = {}
    for path in directory.glob("attempt*"):
        note = json.loads(path.read_text())
        if len(note["ranks"]) == size:
            found.setdefault(int(path.name[len("attempt"):].split(".")[0]), []).append(note)
    return [found[g] for g in sorted(found) if len(found[g]) == size]


@pytest.fixture
def cluster(no_ray, monkeypatch):
    """One node of two CPUs, with the driver."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")
    ray_support._cluster = Cluster()
    try:
        add_node()
        ray.init(address=ray_support._cluster.address)
        yield ray_support._cluster
    finally:
        ray_support.stop_ray()


def add_node():
    return ray_support._cluster.add_node(num_cpus=2, temp_dir=str(ray_support.folder() / "n"),
                                         **ray_support.OPTIONS)


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def checkpoints(directory):
    return len(list(directory.glob("storage/nodes/checkpoint*")))


def change(cluster, directory):
    """Adds a node when the first attempt trains, kills it when it is used; its id.  In the main
    thread: Ray sets a signal handler when it adds a node."""
    until(lambda: notes(directory, 2) and checkpoints(directory), "two ranks never trained")
    node = add_node()
    before = checkpoints(directory)
    until(lambda: notes(directory, 4), "the new node was never used")
    until(lambda: checkpoints(directory) > before + 2, "four ranks never reported")
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: len(notes(directory, 2)) >= 2, "two ranks never trained again")
    return node.node_id


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_new_node_is_used_and_a_lost_one_is_not(cluster, tmp_path):
    trainer = HorovodTrainer(
        train_loops.nodes, train_loop_config={"notes": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=(2, 4), placement_strategy="SPREAD",
                                     elastic_resize_monitor_interval_s=1),
        run_config=RunConfig(name="nodes", storage_path=str(tmp_path / "storage"),
                             failure_config=FailureConfig(max_failures=3)))
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(trainer.fit)
        try:
            node_id = change(cluster, tmp_path)
        finally:
            (tmp_path / "end").touch()
        result = run.result(LIMIT_S)
    small, large = notes(tmp_path, 2), notes(tmp_path, 4)[0]
    assert sorted(n["rank"] for n in large) == [0, 1, 2, 3]
    assert sorted(n["local"] for n in large) == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert sorted(n["cross"] for n in large) == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert len({n["node"] for n in large}) == 2 and node_id in {n["node"] for n in large}
    assert small[0][0]["first"] == 0 < large[0]["first"] < small[-1][0]["first"]
    assert node_id not in {n["node"] for n in small[-1]}
    assert not {n["pid"] for n in small[0]} & {n["pid"] for n in large}, "V2 kept a process"
    assert result.metrics["size"] == 2
