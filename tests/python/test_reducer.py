"""The states of the gradient reducer (src/python/py_bucket.c): which there are, which events
change them, and what is refused."""
import random

import pytest
import torch

import horovod.torch as hvd
from horovod import _core
from horovod.common.exceptions import HorovodInternalError
from horovod.torch._reducer import GradientReducer, When
from horovod.torch.compression import Compression


@pytest.fixture(scope="module", autouse=True)
def job():
    hvd.init()
    yield
    hvd.shutdown()


def new_reducer(count=2, when=When.STEP):
    reducer = GradientReducer(hvd.Sum, Compression.none, 1, 1.0, False,
                              hvd.global_process_set)
    reducer.when = when
    for i in range(count):
        reducer.watch(f"p{i}", torch.ones(3, requires_grad=True))
    reducer.attach()
    return reducer


def state(reducer):
    return reducer.native.plan_state, reducer.native.step_state


def backward(reducer, which=None):
    params = reducer.params if which is None else [reducer.params[i] for i in which]
    sum((p * 2).sum() for p in params).backward()


def add_parameter(reducer):
    reducer.watch(f"p{len(reducer.params)}", torch.ones(3, requires_grad=True))
    reducer.adopt()


def test_the_states_and_their_changes():
    assert _core.PLAN_CHANGES == {"NONE": ("CURRENT",), "CURRENT": ("NONE", "EXPIRING"),
                                  "EXPIRING": ("NONE",)}
    assert _core.STEP_CHANGES == {"IDLE": ("FILLING",), "FILLING": ("IDLE", "REDUCED"),
                                  "REDUCED": ("IDLE", "FILLING")}


def test_a_step_that_is_reduced_in_step():
    reducer = new_reducer()
    assert state(reducer) == ("NONE", "IDLE")
    for plan in ("NONE", "CURRENT"):
        backward(reducer, [0])
        assert state(reducer) == (plan, "FILLING")
        reducer.synchronize()               # p1 has no gradient: zeros
        assert state(reducer) == ("CURRENT", "IDLE")
        assert [p.grad.tolist() for p in reducer.params] == [[2.0] * 3, [0.0] * 3]
        reducer.params[0].grad = None


def test_a_step_that_is_reduced_in_backward():
    reducer = new_reducer(when=When.BACKWARD)
    backward(reducer)
    assert state(reducer) == ("CURRENT", "REDUCED") and not reducer.may_zero()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step"):
        backward(reducer)
    reducer.synchronize()
    assert state(reducer) == ("CURRENT", "IDLE") and reducer.may_zero()


def test_gradients_that_are_only_counted():
    reducer = new_reducer(when=When.NEVER)
    backward(reducer)
    assert state(reducer) == ("NONE", "FILLING") and not reducer.may_zero()
    reducer.reset()
    assert state(reducer) == ("NONE", "IDLE") and reducer.may_zero()


def test_a_parameter_that_comes_late_ends_the_plan():
    reducer = new_reducer(when=When.BACKWARD)
    backward(reducer)
    add_parameter(reducer)
    assert state(reducer) == ("EXPIRING", "REDUCED")
    backward(reducer, [2])
    assert state(reducer) == ("EXPIRING", "REDUCED")
    reducer.synchronize()
    assert state(reducer) == ("NONE", "IDLE")
    assert reducer.params[2].grad.tolist() == [2.0] * 3


@pytest.mark.parametrize("when", [When.BACKWARD, When.STEP])
def test_a_failure_ends_the_step(when, monkeypatch):
    """What is left half reduced is never taken for the result."""
    reducer = new_reducer(when=when)
    backward(reducer)
    reducer.synchronize()

    class Failing:
        def __init__(self, native):
            self._native = native

        def __getattr__(self, name):
            return getattr(self._native, name)

        def wait(self, params):
            raise HorovodInternalError("as planned")

    native = reducer.native
    reducer.native = Failing(native)
    with pytest.raises(HorovodInternalError, match="as planned"):
        backward(reducer)
        reducer.synchronize()
    assert state(reducer) == ("CURRENT", "IDLE")
    reducer.native = native
    backward(reducer)
    reducer.synchronize()
    assert state(reducer) == ("CURRENT", "IDLE")


def test_what_is_out_of_order_is_refused():
    reducer = new_reducer()
    with pytest.raises(AssertionError, match="no plan"):
        reducer.native.collect(reducer.params)
    with pytest.raises(AssertionError, match="2 gradients are not collected"):
        reducer.native.wait(reducer.params)
    reducer.synchronize()
    reducer.native.collect(reducer.params)
    reducer.native.wait(reducer.params)
    assert state(reducer) == ("CURRENT", "REDUCED")


def test_the_job_ends_in_any_state():
    for events in ([], [backward], [backward, GradientReducer.synchronize],
                   [backward, add_parameter]):
        reducer = new_reducer(when=When.BACKWARD)
        for event in events:
            event(reducer)
        reducer.forget()
        assert state(reducer) == ("NONE", "IDLE")


def test_every_pair_of_states_is_reached():
    """Random events reach every pair of states, but results without a plan."""
    seen = set()
    dice = random.Random(1)

    def pass_over(reducer):
        if reducer.native.step_state == "IDLE":
            backward(reducer, [0] if dice.random() < 0.5 else None)

    def collect(reducer):
        if reducer.native.plan_state != "NONE":
            reducer.native.collect(reducer.params)

    events = [pass_over, collect, GradientReducer.synchronize, GradientReducer.reset,
              GradientReducer.forget, GradientReducer._reduce, add_parameter]
    for _ in range(60):
        reducer = new_reducer(when=dice.choice(list(When)))
        for _ in range(12):
            before = state(reducer)
            dice.choice(events)(reducer)
            seen.add((before, state(reducer)))
    assert {s for pair in seen for s in pair} == {
        (plan, step) for plan in _core.PLAN_CHANGES for step in _core.STEP_CHANGES} - {
            ("NONE", "REDUCED")}
