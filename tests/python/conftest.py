"""Fixtures: ``ranks`` runs a function of a case module in every rank of a job."""
import pytest

import guard
from launch import FACTOR, Pool

guard.start()

_pools = {}


@pytest.fixture
def ranks(request):
    """ranks(size, function, env={}, limit=60, **arguments)

    The function must be at module level of a module under tests/python.  Jobs are kept:
    every (size, env) has one pool of processes."""
    def run(size, function, env=None, limit=60.0, **kwargs):
        key = size, tuple(sorted((env or {}).items()))
        pool = _pools.get(key)
        if pool is None:
            while len(_pools) >= 4:         # processes that sleep still need memory
                _pools.pop(next(iter(_pools))).close()
            pool = _pools[key] = Pool(size, dict(key[1]))
        try:
            pool.run(function.__module__, function.__name__, kwargs, limit * FACTOR)
        except BaseException:
            _pools.pop(key).close()
            raise
    return run


def pytest_sessionfinish(session, exitstatus):
    while _pools:
        _pools.popitem()[1].close()
