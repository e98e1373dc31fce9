"""Two Ray nodes on one machine: equal host names and addresses, different node ids."""
import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_cases as cases  # noqa: E402
import ray_support  # noqa: E402

from horovod.ray import RayExecutor, elastic, elastic_v2  # noqa: E402


def layout(**kwargs):
    """(local rank, local size, cross rank, cross size, sum) by rank, and the node of each."""
    executor = RayExecutor(RayExecutor.create_settings(), **kwargs)
    executor.start()
    try:
        nodes = [v["HOROVOD_HOSTNAME"] for v in executor.run(cases.variables,
                                                             args=["HOROVOD_HOSTNAME"])]
        return [(p["local_rank"], p["local_size"], p["cross_rank"], p["cross_size"], p["sum"])
                for p in executor.run(cases.place)], nodes
    finally:
        executor.shutdown()


def test_workers_on_each_of_two_hosts(two_nodes):
    places, nodes = layout(num_hosts=2, num_workers_per_host=2)
    assert places == [(0, 2, 0, 2, 6.0), (1, 2, 0, 2, 6.0), (0, 2, 1, 2, 6.0),
                      (1, 2, 1, 2, 6.0)]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]
    assert set(nodes) == {n["NodeID"] for n in ray.nodes() if n["Alive"]}


def test_nodes_with_different_numbers_of_ranks(two_nodes):
    places, nodes = layout(num_workers=3)
    by_node = {node: [p for p, n in zip(places, nodes) if n == node] for node in set(nodes)}
    assert sorted(map(len, by_node.values())) == [1, 2]
    for ranks in by_node.values():
        assert [p[0] for p in ranks] == list(range(len(ranks)))
        assert {p[1] for p in ranks} == {len(ranks)}
    assert sorted((p[2], p[3]) for p in places) == [(0, 1), (0, 2), (1, 2)]
    assert {p[4] for p in places} == {3.0}


def test_discovery_counts_nodes_of_one_address_together(two_nodes):
    address = ray.nodes()[0]["NodeManagerAddress"]
    for discovery in (elastic, elastic_v2):
        assert discovery.RayHostDiscovery().find_available_hosts_and_slots() == {address: 4}
        assert discovery.RayHostDiscovery(False, 2).find_available_hosts_and_slots() == {
            address: 2}


def test_a_cluster_that_ends_before_the_executor(two_nodes):
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=1)
    executor.start()
    assert cases.threads()
    ray_support.stop_ray()
    executor.shutdown()                     # and does not start a Ray of its own
    assert not ray.is_initialized()
    assert cases.threads() == []
