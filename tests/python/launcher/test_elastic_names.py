"""horovod.runner.elastic and gloo_run: elastic jobs from Python."""
import os
import signal
import subprocess
import sys
import time

import pytest

from horovod.runner import gloo_run, run
from horovod.runner.elastic import driver
from horovod.runner.elastic.discovery import FixedHosts, HostDiscovery, HostDiscoveryScript
from horovod.runner.elastic.driver import ElasticDriver
from horovod.runner.elastic.settings import ElasticSettings

WORKER = """
import os, signal, sys
import numpy as np
import horovod.numpy as hvd
from horovod.common.exceptions import HorovodInternalError
hvd.init()
if sys.argv[1] == "kill" and hvd.size() == 2 and hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
for step in range(3):
    try:
        hvd.allreduce(np.ones(4), name=str(step))
    except HorovodInternalError:
        hvd.shutdown()
        hvd.init()
hvd.shutdown()
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.05)


def execute(kind, started):
    """A create_worker_fn that runs WORKER."""
    def create(slot, events):
        started.append(slot)
        process = subprocess.Popen([sys.executable, "-c", WORKER, kind],
                                   env={**os.environ, **gloo_run.create_slot_env_vars(slot)})
        while process.poll() is None:
            if any(event.wait(0.02) for event in events):
                process.send_signal(signal.SIGKILL)
                process.wait()
        return process.returncode if process.returncode >= 0 else 128 - process.returncode, \
            time.time()
    return create


def test_a_driver_starts_workers():
    started = []
    elastic = ElasticDriver(None, FixedHosts({"localhost": 2}), 2, 2, timeout=60)
    hosts = elastic.wait_for_available_slots(2)
    assert hosts.host_assignment_order == ["localhost"]
    elastic.start(2, execute("run", started))
    results = elastic.get_results()
    assert results.error_message is None and elastic.finished()
    assert {name: code for name, (code, _) in results.worker_results.items()} == \
        {"localhost[0]": 0, "localhost[1]": 0}
    assert sorted(s.rank for s in started) == [0, 1] and elastic.world_size() == 2


def test_a_driver_goes_on_without_a_host_that_failed():
    started = []
    elastic = ElasticDriver(None, FixedHosts({"localhost": 1, "127.0.0.1": 1}), 1, 2, timeout=60)
    elastic.start(2, execute("kill", started))
    results = elastic.get_results()
    assert results.error_message is None, results.error_message
    assert results.worker_results["127.0.0.1[0]"][0] == 137
    assert results.worker_results["localhost[0]"][0] == 0 and elastic.world_size() == 1


def test_hosts_that_cannot_be_found():
    class Broken(HostDiscovery):
        def find_available_hosts_and_slots(self):
            raise RuntimeError("nobody answers")

    elastic = ElasticDriver(None, Broken(), 1, 1)
    with pytest.raises(RuntimeError, match="nobody answers"):
        elastic.wait_for_available_slots(1)
    assert elastic.finished()
    few = ElasticDriver(None, FixedHosts({"a": 1}), 1, 1, timeout=0.1)
    with pytest.raises(RuntimeError, match="1 slots on 1 hosts"):
        few.wait_for_available_slots(2)


def place():
    import horovod.numpy as hvd
    hvd.init()
    return hvd.rank(), hvd.size()


def settings(discovery, **more):
    return ElasticSettings(discovery, 2, 2, 60, None, num_proc=2, nics=None, **more)


@pytest.mark.parametrize("discovery", [FixedHosts({"localhost": 1, "127.0.0.1": 1}),
                                       HostDiscoveryScript("echo localhost", 2)])
def test_elastic_jobs_of_settings(discovery):
    assert gloo_run.gloo_run_elastic(settings(discovery), dict(os.environ), place) == \
        [(0, 2), (1, 2)]
    gloo_run.gloo_run_elastic(settings(discovery), dict(os.environ), "true")
    with pytest.raises(RuntimeError, match="Exit code: 3"):
        gloo_run.gloo_run_elastic(settings(discovery), dict(os.environ),
                                  ["sh", "-c", "exit 3"])


def test_a_command_of_somebody_who_starts_workers():
    def execute_line(command, slot, events):
        return subprocess.call(command, shell=True), time.time()

    gloo_run.launch_gloo_elastic(f"{sys.executable} -V", execute_line,
                                 settings(FixedHosts({"localhost": 2}), verbose=0), {})


def test_run_with_a_discovery_script():
    assert run(place, num_proc=2, min_num_proc=2, max_num_proc=2,
               host_discovery_script="printf 'localhost:2\\n127.0.0.1:2\\n'") == \
        [(0, 2), (1, 2)]
