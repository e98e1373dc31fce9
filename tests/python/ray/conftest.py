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


def _ray_of(item):
    """0: none, 1: the shared one, 2: the one of two nodes, 3: one of its own."""
    names = set(item.fixturenames)
    if "no_ray" in names:
        return 3
    if "two_nodes" in names:
        return 2
    return int(bool(names & {"shared_ray", "job", "kept", "fresh", "group"}))


def pytest_collection_modifyitems(items):
    """Tests of one Ray stand together, so that each is started once."""
    here = [i for i, item in enumerate(items) if ray_support.HERE in item.path.parents]
    for place, item in zip(here, sorted((items[i] for i in here), key=_ray_of)):
        items[place] = item


def pytest_sessionfinish(session, exitstatus):
    ray_support.finish()
