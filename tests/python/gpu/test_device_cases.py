"""Cases of the operations and the optimizer again, with all tensors on a device; and cases of
devices alone (cases_device.py).  kinds.py says what the two devices are."""
import pytest

import cases
import cases_collectives        # noqa: F401
import cases_errors             # noqa: F401
import cases_gradients          # noqa: F401
import cases_optimizer          # noqa: F401
import cases_sets               # noqa: F401
import cases_training           # noqa: F401
from gpu import cases_device, kinds

LEFT_OUT = {
    "a_tensor_in_flight_keeps_its_memory": "resizing of memory that torch allocates on the CPU",
    "compiled": "torch.compile wants a real device",
    "models_differ": "its text says that the parameters are on a GPU",
    "of_groups": "autograd makes gradients that are missing on the CPU, as it takes the tensors",
    "ranks_with_different_models": "its text says that the parameters are on a GPU",
}
NOT_ON_THE_STAND_IN = {
    "factors_that_are_no_numbers": "the stand-in compares factors of ranks, and NaN is no number",
}
SLOW = ("every_optimizer", "large_tensors")
PATIENCE = 3            # every operation on these devices wakes a thread or two

_every = {f.__name__: (f, limit * PATIENCE) for f, sizes, env, limit in cases.registry
          if 2 in sizes and not env and f.__module__ != "cases_elastic"}
_chosen = sorted(set(_every) - set(LEFT_OUT))


def _marked(name, is_long):
    return pytest.param(name, marks=[pytest.mark.long] if is_long else [])


def test_what_is_named_exists():
    assert set(LEFT_OUT) | set(NOT_ON_THE_STAND_IN) | set(SLOW) <= set(_every)


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """The environment of ranks whose devices are those of the stand-in."""
    return kinds.environment(tmp_path_factory.mktemp("standin"))


@pytest.mark.parametrize("name", [
    _marked(n, n in SLOW or _every[n][0].__module__ == "cases_training") for n in _chosen])
def test_through_the_host(ranks, name):
    """The Python way, without a CUDA library."""
    function, limit = _every[name]
    ranks(2, function, {"HVD_TEST_DEVICE": "late"}, limit)


@pytest.mark.long
@pytest.mark.parametrize("name", [n for n in _chosen if n not in NOT_ON_THE_STAND_IN])
def test_handed_over(ranks, standin, name):
    """The core has the tensors, with the stand-ins of CUDA and NCCL."""
    function, limit = _every[name]
    ranks(2, function, standin, limit)


@pytest.mark.parametrize("function", cases_device.EVERY +
                         [cases_device.one_warning_tells_of_the_slow_way],
                         ids=lambda f: f.__name__)
def test_on_a_late_device(ranks, function):
    ranks(2, function, {"HVD_TEST_DEVICE": "late"}, 60 * PATIENCE, kind="late")


@pytest.mark.parametrize("function", cases_device.EVERY + cases_device.OF_THE_CORE,
                         ids=lambda f: f.__name__)
def test_on_the_stand_in(ranks, standin, function):
    ranks(2, function, standin, 60 * PATIENCE, kind="standin")


@pytest.mark.long
@pytest.mark.parametrize("options", [{"HOROVOD_GPU_BACKEND": "host"},
                                     {"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"},
                                     {"STANDIN_SAME": "1"}], ids=lambda o: "-".join(o))
def test_other_ways_of_the_core(ranks, standin, options):
    """Through pinned host memory; with handles that are done when the work is queued; with both
    ranks on one GPU."""
    for function in (cases_device.two_streams_and_all_operations,
                     cases_device.hooks_on_several_streams):
        ranks(2, function, {**standin, **options}, 60 * PATIENCE, kind="standin")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_seeds(ranks, standin, seed):
    options = {**standin, "STANDIN_SEED": str(seed + 2), "HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}
    for function in (cases_device.two_streams_and_all_operations,
                     cases_device.hooks_on_several_streams, cases_device.one_call_a_bucket):
        ranks(2, function, options, 60 * PATIENCE, kind="standin")
