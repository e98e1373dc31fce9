"""RayExecutor through Ray Client: everything but the callbacks runs in the cluster."""
import subprocess
import sys

import pytest
import ray_support


@pytest.mark.timeout(240)
def test_a_job_through_ray_client(no_ray):
    pytest.importorskip("grpc", reason="Ray Client needs ray[client]")
    result = subprocess.run(
        [sys.executable, str(ray_support.HERE / "ray_client_job.py"),
         str(ray_support.folder() / "k")], capture_output=True, text=True, timeout=220)
    ray_support.stop_ray()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "client job done" in result.stdout
