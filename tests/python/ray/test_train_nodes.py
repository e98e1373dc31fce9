"""HorovodTrainer on two Ray nodes that share machine, name and address."""
import json
import threading
import time

import pytest

import ray
import ray_support
from ray.cluster_utils import Cluster
from ray.train import FailureConfig, RunConfig, ScalingConfig

import train_loops
from horovod.ray.train import HorovodTrainer


def notes(directory, name):
    return [json.loads(path.read_text()) for path in directory.glob(f"{name}.*")]


@pytest.fixture
def lost_node(no_ray, monkeypatch):
    """The second of two nodes.  The driver is on the first: there was no other when it came."""
    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "10")
    ray_support._cluster = Cluster()
    options = dict(num_cpus=2, temp_dir=str(ray_support.folder() / "n"),
                   **ray_support.OPTIONS)
    try:
        ray_support._cluster.add_node(**options)
        ray.init(address=ray_support._cluster.address)
        yield ray_support._cluster.add_node(**options)
    finally:
        ray_support.stop_ray()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lost_node_shrinks_the_job(lost_node, tmp_path):
    """num_workers=(2, 4): four ranks on two nodes; then one node is killed."""
    trainer = HorovodTrainer(
        train_loops.nodes, train_loop_config={"notes": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=(2, 4), placement_strategy="SPREAD"),
        run_config=RunConfig(name="nodes", storage_path=str(tmp_path / "storage"),
                             failure_config=FailureConfig(max_failures=2)))
    killer = threading.Thread(target=kill_when_ready, args=(lost_node, tmp_path), daemon=True)
    killer.start()
    result = trainer.fit()
    before, after = notes(tmp_path, "attempt0"), notes(tmp_path, "attempt1")
    assert sorted(n["rank"] for n in before) == [0, 1, 2, 3]
    assert all(n["ranks"] == [0, 1, 2, 3] for n in before)
    assert sorted(n["local"] for n in before) == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert sorted(n["cross"] for n in before) == [[0, 2], [0, 2], [1, 2], [1, 2]]
    assert len({n["node"] for n in before}) == 2
    assert sorted(n["rank"] for n in after) == [0, 1]
    assert {n["node"] for n in after} == {n["node"] for n in before} - {lost_node.node_id}
    assert result.metrics["size"] == 2


def kill_when_ready(node, directory):
    """When all ranks train and a checkpoint is there."""
    end = time.monotonic() + 60
    while time.monotonic() < end and not (
            len(notes(directory, "attempt0")) >= 4 and
            list(directory.glob("storage/nodes/checkpoint*"))):
        time.sleep(0.1)
    ray_support._cluster.remove_node(node, allow_graceful=False)
