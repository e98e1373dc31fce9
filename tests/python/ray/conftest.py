"""Fixtures: which Ray a test wants; see ray_support.py."""
import pytest

pytest.importorskip("ray")

import ray_support  # noqa: E402


@pytest.fixture
def shared_ray():
    """8 CPUs and 4 GPUs (numbers, not hardware), shared by all who ask for it."""
    ray_support.use_ray("shared")


@pytest.fixture
def two_nodes():
    """Two nodes of 2 CPUs on this machine."""
    ray_support.use_ray("two nodes")


@pytest.fixture
def no_ray():
    """None: the test starts one in a process of its own."""
    ray_support.alone()


def pytest_sessionfinish(session, exitstatus):
    ray_support.finish()
