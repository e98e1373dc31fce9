"""Every case of the case modules, with each of its numbers of ranks."""
import pytest

import cases
import cases_collectives        # noqa: F401
import cases_elastic            # noqa: F401
import cases_errors             # noqa: F401
import cases_gradients          # noqa: F401
import cases_lifecycle          # noqa: F401
import cases_optimizer          # noqa: F401
import cases_sets               # noqa: F401
import cases_training           # noqa: F401

# By environment, then size: neighbours share a pool.
_tests = sorted(((function, size, env, limit) for function, sizes, env, limit in cases.registry
                 for size in sizes), key=lambda t: (sorted(t[2].items()), t[1]))


@pytest.mark.parametrize("function,size,env,limit", _tests, ids=[
    f"{f.__module__[6:]}-{f.__name__}-{size}" for f, size, _, _ in _tests])
def test_case(ranks, function, size, env, limit):
    ranks(size, function, env, limit)
