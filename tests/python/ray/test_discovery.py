"""Discovery of hosts for elastic jobs, on invented nodes."""
import pytest

pytest.importorskip("ray")

import ray  # noqa: E402

from horovod.ray import elastic, elastic_v2  # noqa: E402
from horovod.runner.elastic.discovery import HostDiscovery  # noqa: E402
from horovod.runner.util.network import get_driver_ip  # noqa: E402

BOTH = pytest.mark.parametrize("module", [elastic, elastic_v2], ids=["slot", "worker"])


def nodes(count, alive=True, **resources):
    return [{"alive": alive, "NodeManagerAddress": f"10.0.0.{i}", "Resources": resources}
            for i in range(count)]


def invent(monkeypatch, *lists):
    monkeypatch.setattr(ray, "nodes", lambda: iter([n for some in lists for n in some]))


@BOTH
@pytest.mark.parametrize("resources, arguments, slots", [
    (dict(CPU=4), (False,), [4]),
    (dict(CPU=4, GPU=1), (True,), [1]),
    (dict(CPU=8, GPU=4), (True, 1, 2), [2]),
    (dict(CPU=8), (True,), []),
    (dict(CPU=8, GPU=4), (False, 3), [2]),
    (dict(CPU=1), (False, 2), []),
])
def test_slots(module, monkeypatch, resources, arguments, slots):
    invent(monkeypatch, nodes(1, **resources))
    found = module.RayHostDiscovery(*arguments).find_available_hosts_and_slots()
    assert list(found.values()) == slots


@BOTH
def test_three_nodes(module, monkeypatch):
    invent(monkeypatch, nodes(3, CPU=8, GPU=2))
    assert isinstance(module.RayHostDiscovery(), HostDiscovery)
    find = module.RayHostDiscovery(use_gpu=True).find_available_hosts_and_slots
    assert find() == {f"10.0.0.{i}": 2 for i in range(3)}
    find = module.RayHostDiscovery(True, 1, 2).find_available_hosts_and_slots
    assert find() == {f"10.0.0.{i}": 1 for i in range(3)}
    invent(monkeypatch, nodes(3, alive=False, CPU=8))
    assert find() == {}


@BOTH
def test_hosts_that_come_and_go(module, monkeypatch):
    invent_all = nodes(4, CPU=2)
    invent(monkeypatch, invent_all)
    discovery = module.TestDiscovery(min_hosts=2, max_hosts=3, change_frequency_s=0.0,
                                     verbose=False)
    counts = [len(discovery.find_available_hosts_and_slots()) for _ in range(200)]
    assert set(counts[4:]) == {2, 3}
    still = module.TestDiscovery(2, 3, change_frequency_s=3600)
    assert [len(still.find_available_hosts_and_slots()) for _ in range(5)] == [4] * 5


def test_address_of_the_driver():
    assert get_driver_ip(["lo"]) == "127.0.0.1"
    assert ":" not in get_driver_ip()
    with pytest.raises(RuntimeError, match="nosuch"):
        get_driver_ip(["nosuch"])
