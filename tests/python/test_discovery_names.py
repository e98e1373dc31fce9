"""horovod.runner.elastic: finding hosts from Python."""
import stat

import pytest

from horovod.runner.elastic import constants, discovery, driver
from horovod.runner.elastic.discovery import (FixedHosts, HostDiscovery, HostDiscoveryScript,
                                              HostManager)
from horovod.runner.elastic.worker import HostUpdateResult as Result


def script(tmp_path, text, code=0):
    path = tmp_path / "discover.sh"
    path.write_text(f"#!/bin/sh\nprintf '{text}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("text, hosts", [
    ("", {}), ("h\\n", {"h": 4}), ("h:2\\n", {"h": 2}), ("a:1\\nb:2\\nc", {"a": 1, "b": 2, "c": 4}),
    ("\\na:1\\n\\n\\nb:2\\n\\n", {"a": 1, "b": 2}), ("a:1\\na:1", {"a": 1}),
    ("a:1\\na:3", {"a": 3})])
def test_what_a_script_prints(tmp_path, text, hosts):
    found = HostDiscoveryScript(script(tmp_path, text), 4).find_available_hosts_and_slots()
    assert found == hosts and list(found) == list(hosts)


def test_a_script_that_fails(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="exit code 3"):
        HostDiscoveryScript(script(tmp_path, "a:1", 3), 1).find_available_hosts_and_slots()
    with pytest.raises(RuntimeError, match="'a'.*--slots-per-host"):
        HostDiscoveryScript(script(tmp_path, "a"), None).find_available_hosts_and_slots()
    monkeypatch.setattr(discovery, "SCRIPT_LIMIT_S", 0.2)
    with pytest.raises(RuntimeError, match="did not end within 0.2 s"):
        HostDiscoveryScript("exec sleep 60", 1).find_available_hosts_and_slots()


def test_order_of_hosts():
    assert HostManager.order_available_hosts({"d", "c", "b"}, ["a", "b", "c"]) == ["b", "c", "d"]
    assert HostManager.order_available_hosts(["z", "y"], []) == ["z", "y"]


def test_changes_of_hosts():
    hosts = FixedHosts({"a": 2})
    assert isinstance(hosts, HostDiscovery)
    manager = HostManager(hosts)
    assert manager.update_available_hosts() == Result.added
    first = manager.current_hosts
    for found, change in (({"a": 2, "b": 2}, Result.added), ({"b": 2}, Result.removed),
                          ({"b": 1, "c": 1}, Result.mixed), ({"b": 1, "c": 1}, Result.no_update)):
        hosts.set(found)
        assert manager.update_available_hosts() == change
    assert first.host_assignment_order == ["a"] and first.count_available_slots() == 2
    assert manager.current_hosts.host_assignment_order == ["b", "c"]
    assert manager.current_hosts.get_slots("c") == 1


def test_the_blacklist():
    manager = HostManager(FixedHosts({"a": 2, "b": 1}))
    manager.update_available_hosts()
    before = manager.current_hosts
    manager.blacklist("a")
    assert manager.is_blacklisted("a") and not manager.is_blacklisted("b")
    assert manager.current_hosts.available_hosts == {"b"} and before.available_hosts == {"a", "b"}
    assert manager.update_available_hosts() == Result.no_update
    for bad in ((0, 5), (1, 3601), (5, 4)):
        with pytest.raises(ValueError, match="cooldown"):
            HostManager(FixedHosts({}), bad)


def test_cooldown(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(discovery.time, "monotonic", lambda: now[0])
    manager = HostManager(FixedHosts({"a": 2}), (10, 100))
    manager.update_available_hosts()
    for least, most in ((20, 30), (40, 50), (80, 90), (100, 100), (100, 100)):
        manager.blacklist("a")
        assert manager.update_available_hosts() == Result.no_update
        now[0] += least - 0.5
        assert manager.is_blacklisted("a")
        manager.blacklist("a")                          # does not count again
        now[0] += most - least + 1
        assert not manager.is_blacklisted("a")
        assert manager.update_available_hosts() == Result.added


def test_module_variables():
    assert driver.DISCOVER_HOSTS_FREQUENCY_SECS == 1.0 and driver.ELASTIC_TIMEOUT_SECS == 600.0
    assert constants.RESET_LIMIT_EXCEEDED_MESSAGE.format(3) == \
        "Horovod was shutdown because number of resets during elastic job exceeded limit: 3"
