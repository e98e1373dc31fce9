"""Elastic jobs on a cluster whose autoscaler runs: it starts nodes because a job asks for places.

The nodes are those of Ray's provider for tests, processes of this machine.  ``ray stop`` and the
cluster class that goes with the provider are not used: they end every Ray of the machine.
"""
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_support  # noqa: E402
from elastic_cases import Journal, training  # noqa: E402

from horovod.ray import RayExecutor  # noqa: E402


def config(address):
    """A head of one CPU that is there, and up to two nodes of one CPU each."""
    head = {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0}
    small = {"resources": {"CPU": 1, "object_store_memory": 80 << 20}, "node_config": {},
             "min_workers": 0, "max_workers": 2}
    nothing = {name: [] for name in (
        "cluster_synced_files", "rsync_exclude", "rsync_filter", "initialization_commands",
        "setup_commands", "head_setup_commands", "worker_setup_commands",
        "head_start_ray_commands", "worker_start_ray_commands")}
    provider = {"type": "fake_multinode", "gcs_address": address, "use_node_id_as_ip": True,
                "disable_node_updaters": True, "disable_launch_config_check": True}
    return {"cluster_name": "test", "max_workers": 2, "idle_timeout_minutes": 0.05,
            "upscaling_speed": 1.0, "provider": provider, "auth": {}, "file_mounts": {},
            "file_mounts_sync_continuously": False, "head_node_type": "ray.head.default",
            "available_node_types": {"ray.head.default": head, "small": small}, **nothing}


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


@pytest.fixture
def autoscaled(no_ray):
    """The driver is on the head."""
    port = free_port()
    address = f"{ray.util.get_node_ip_address()}:{port}"
    path = ray_support.folder() / "autoscaler.json"
    path.write_text(json.dumps(config(address)))
    program = str(pathlib.Path(sys.executable).with_name("ray"))
    subprocess.run(
        [program, "start", "--head", f"--port={port}", f"--autoscaling-config={path}",
         "--num-cpus=1", f"--object-store-memory={100 << 20}", "--include-dashboard=false",
         f"--ray-client-server-port={free_port()}"], check=True,
        env=dict(os.environ, AUTOSCALER_UPDATE_INTERVAL_S="1", RAY_FAKE_CLUSTER="1"))
    try:
        ray.init(address=address)
        yield
    finally:
        print(*(p.read_text()[-4000:] for p in ray_support.folder().rglob("monitor.log")))
        ray.shutdown()
        for pid in ray_support.marked_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ray_support.stop_ray()


class Holder:
    """Has the only CPU of the head."""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_nodes_come_for_a_job_that_asks_for_them(autoscaled, tmp_path):
    holder = ray.remote(num_cpus=1)(Holder).remote()
    ray.get(holder.__ray_ready__.remote())
    journal = Journal(tmp_path / "journal")
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=1, max_workers=2,
                           elastic_timeout=120)
    executor.start()                        # there was no room anywhere
    try:
        results = executor.run(training, args=[journal.path, 6, {3: ("size", 2)}])
    finally:
        executor.shutdown()
    assert [size for _, size, _ in results] == [2, 2]
    assert journal.check(6)[3:] == [2] * 3
    nodes = {e["node"] for e in journal.read("started")}
    assert len(nodes) == 2 and ray.get_runtime_context().get_node_id() not in nodes
    assert ray.get(holder.__ray_ready__.remote()), "what others hold is theirs"
