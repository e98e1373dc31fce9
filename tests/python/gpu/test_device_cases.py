"""Cases of the operations and the optimizer again, with all tensors on a device."""
import pytest

import cases
import cases_collectives        # noqa: F401
import cases_errors             # noqa: F401
import cases_gradients          # noqa: F401
import cases_optimizer          # noqa: F401
import cases_sets               # noqa: F401
import cases_training           # noqa: F401
from gpu import cases_device

LEFT_OUT = {
    "a_tensor_in_flight_keeps_its_memory": "resizing of memory that torch allocates on the CPU",
    "compiled": "torch.compile wants a real device",
    "models_differ": "its text says that the parameters are on a GPU",
    "of_groups": "autograd makes gradients that are missing on the CPU, as it takes the tensors",
    "ranks_with_different_models": "its text says that the parameters are on a GPU",
}
_every = {f.__name__: (f, limit) for f, sizes, env, limit in cases.registry
          if 2 in sizes and not env and f.__module__ != "cases_elastic"}
_chosen = sorted(set(_every) - set(LEFT_OUT))


def test_what_is_left_out_exists():
    assert set(LEFT_OUT) <= set(_every)


@pytest.mark.parametrize("name", _chosen)
def test_through_the_host(ranks, name):
    """The Python way, without a CUDA library."""
    function, limit = _every[name]
    ranks(2, function, {"HVD_TEST_DEVICE": "late"}, limit)


@pytest.mark.parametrize("function", cases_device.EVERY +
                         [cases_device.one_warning_tells_of_the_slow_way],
                         ids=lambda f: f.__name__)
def test_on_a_late_device(ranks, function):
    ranks(2, function, {"HVD_TEST_DEVICE": "late"}, kind="late")
