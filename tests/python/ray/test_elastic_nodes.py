"""Elastic jobs on nodes that come, are killed, come back and are drained."""
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_support  # noqa: E402
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # noqa: E402
from elastic_cases import Journal, training  # noqa: E402

from horovod.ray import RayExecutor  # noqa: E402


def waits(journal, step):
    """Until the training waits at this step."""
    end = time.monotonic() + 90
    while not any(e["step"] == step for e in journal.read("wait")):
        assert time.monotonic() < end, journal.read()[-5:]
        time.sleep(0.02)


def drain(node):
    """As a cloud does that takes a machine back."""
    client = ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address)
    is_accepted, why = client.drain_node(
        node.node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "it goes",
        int((time.time() + 600) * 1000))
    assert is_accepted, why


def resets(output):
    return re.findall(r"^horovod: (.*) train on after .*$", output, re.M)


@pytest.mark.timeout(240)
def test_nodes_come_die_come_back_and_are_drained(two_nodes, tmp_path, capfd):
    journal = Journal(tmp_path / "journal")
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), min_workers=2,
                           max_workers=6)
    executor.start()
    nodes = []
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(executor.run, training, [
            journal.path, 15, {3: ("size", 6), 6: ("size", 4), 9: ("size", 6), 12: ("size", 4)}])
        try:
            waits(journal, 3)
            nodes.append(ray_support.add_node())
            waits(journal, 6)
            ray_support.remove_node(nodes.pop())
            waits(journal, 9)
            nodes.append(ray_support.add_node())
            waits(journal, 12)
            drain(nodes[0])
            results = job.result(90)
        finally:
            executor.shutdown()
            for node in nodes:
                ray_support.remove_node(node)
    assert [size for _, size, _ in results] == [4] * 4
    assert journal.check(15) == [4] * 3 + [6] * 3 + [4] * 3 + [6] * 3 + [4] * 3
    started = journal.read("started")
    address = ray.util.get_node_ip_address()
    assert {e["host"] for e in started} == {address, *(f"{address}-{n}" for n in (2, 3, 4))}
    survivors = {e["pid"] for e in journal.read("step") if e["step"] == 0}
    assert survivors == {e["pid"] for e in journal.read("step") if e["step"] == 14}
    assert len(started) == 8
    texts = resets(capfd.readouterr().err)
    assert f"{address}-3[0] came, {address}-3[1] came; 6 workers" in texts[0]
    assert f"{address}-4[0] came, {address}-4[1] came; 6 workers" in texts[-2]
    assert f"host {address}-4 was taken from the list; 4 workers" in texts[-1]
    assert all(f"{address}-3[" in text for text in texts[1:-2])
