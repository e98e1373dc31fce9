"""HorovodTrainer that grows with a new node and shrinks with a lost one, as Ray Train V2 does it:
by a new group of workers that starts from the last checkpoint."""
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

import ray_support  # noqa: E402
from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: E402

import train_loops  # noqa: E402
from horovod.ray.train import HorovodTrainer  # noqa: E402

LIMIT_S = 150.0                 # on a machine that does much else


def attempts(directory, size):
    """Those of this size in which all ranks have trained: the notes of each, by generation."""
    found = {}
    for path in directory.glob("attempt*"):
        note = json.loads(path.read_text())
        if len(note["ranks"]) == size:
            found.setdefault(int(path.name[len("attempt"):].split(".")[0]), []).append(note)
    return [found[g] for g in sorted(found) if len(found[g]) == size]


def until(condition, what):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def checkpoints(directory):
    return len(list(directory.glob("storage/nodes/checkpoint*")))


def change(directory):
    """Adds a node when the first attempt trains, kills it when the second has; the times, and its
    id.  In the main thread: Ray sets a signal handler when it adds a node."""
    until(lambda: attempts(directory, 2) and checkpoints(directory), "two ranks never trained")
    node = ray_support.add_node()
    added = time.time()
    until(lambda: attempts(directory, 3), "the new node was never used")
    before = checkpoints(directory)             # from here on they are those of three ranks
    until(lambda: checkpoints(directory) > before + 2, "three ranks never reported")
    killed = time.time()
    ray_support.remove_node(node)
    until(lambda: len(attempts(directory, 2)) >= 2, "two ranks never trained again")
    return node.node_id, added, killed


def fit(directory):
    return HorovodTrainer(
        train_loops.nodes, train_loop_config={"notes": str(directory)},
        scaling_config=ScalingConfig(num_workers=(2, 3), resources_per_worker={"CPU": 2},
                                     elastic_resize_monitor_interval_s=1),
        run_config=RunConfig(name="nodes", storage_path=str(directory / "storage"),
                             failure_config=FailureConfig(max_failures=3))).fit()


@pytest.mark.timeout(600)
def test_a_new_node_is_used_and_a_lost_one_is_not(two_nodes, tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(fit, tmp_path)
        try:
            node_id, added, killed = change(tmp_path)
        finally:
            (tmp_path / "end").touch()
        result = run.result(LIMIT_S)
    small, large = attempts(tmp_path, 2), attempts(tmp_path, 3)[0]
    assert sorted(n["rank"] for n in large) == [0, 1, 2]
    assert sorted(n["cross"] for n in large) == [[0, 3], [1, 3], [2, 3]]
    assert len({n["node"] for n in large}) == 3 and node_id in {n["node"] for n in large}
    assert node_id not in {n["node"] for n in small[-1]}
    # From the last checkpoint, in new processes.
    assert small[0][0]["first"] == 0 < large[0]["first"] < small[-1][0]["first"]
    assert not {n["pid"] for n in small[0]} & {n["pid"] for n in large}, "V2 kept a process"
    assert result.metrics["size"] == 2
    print(f"first step {min(n['time'] for n in large) - added:.1f} s after the node, "
          f"{min(n['time'] for n in small[-1]) - killed:.1f} s after its loss")
