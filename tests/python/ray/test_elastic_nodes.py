"""Elastic jobs on nodes that come, are killed and come back."""
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_support  # noqa: E402
from elastic_cases import Journal, training  # noqa: E402

from horovod.ray import RayExecutor  # noqa: E402


def waits(journal, step):
    """Until the training waits at this step.  Nodes can be added in the main thread only: Ray
    sets a signal handler."""
    end = time.monotonic() + 90
    while not any(e["step"] == step for e in journal.read("wait")):
        assert time.monotonic() < end, journal.read()[-5:]
        time.sleep(0.02)


def add_node():
    return ray_support._cluster.add_node(
        num_cpus=2, temp_dir=str(ray_support.folder() / "c"), **ray_support.OPTIONS)


def resets(output):
    return re.findall(r"^horovod: (.*) train on after .*$", output, re.M)


@pytest.mark.timeout(240)
def test_nodes_come_die_and_come_back(two_nodes, tmp_path, capfd):
    journal = Journal(tmp_path / "journal")
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), min_workers=2,
                           max_workers=6)
    executor.start()
    nodes = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(executor.run, training, [
            journal.path, 12, {3: ("size", 6), 6: ("size", 4), 9: ("size", 6)}])
        try:
            waits(journal, 3)
            nodes.append(add_node())
            waits(journal, 6)
            ray_support._cluster.remove_node(nodes.pop(), allow_graceful=False)
            waits(journal, 9)
            nodes.append(add_node())
            results = job.result(90)
        finally:
            executor.shutdown()
            for node in nodes:
                ray_support._cluster.remove_node(node)
    assert [size for _, size, _ in results] == [6] * 6
    assert journal.check(12) == [4] * 3 + [6] * 3 + [4] * 3 + [6] * 3
    started = journal.read("started")
    address = ray.util.get_node_ip_address()
    assert {e["host"] for e in started} == {address, *(f"{address}-{n}" for n in (2, 3, 4))}
    survivors = {e["pid"] for e in journal.read("step") if e["step"] == 0}
    assert survivors < {e["pid"] for e in journal.read("step") if e["step"] == 11}
    assert len(started) == 8
    texts = resets(capfd.readouterr().err)
    assert f"{address}-3[0] came, {address}-3[1] came; 6 workers" in texts[0]
    assert f"{address}-4[0] came, {address}-4[1] came; 6 workers" in texts[-1]
    assert all(f"{address}-3[" in text for text in texts[1:-1])
