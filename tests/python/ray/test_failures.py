"""RayExecutor: what happens when a worker fails, and what the caller hears of it."""
import gc
import threading
import time

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_cases as cases  # noqa: E402
import ray_support  # noqa: E402
from ray.exceptions import ActorDiedError, RayActorError  # noqa: E402

from horovod.ray import RayExecutor, _calls  # noqa: E402

SOON_S = 30.0                   # "within seconds" on a machine that does much else


@pytest.fixture(scope="module")
def kept():
    """An executor whose workers survive what is done to them."""
    ray_support.use_ray("shared")
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=3)
    executor.start()
    yield executor
    executor.shutdown()


@pytest.fixture
def fresh(shared_ray):
    executors = []

    def make(workers=2):
        executors.append(RayExecutor(RayExecutor.create_settings(timeout_s=60),
                                     num_workers=workers))
        return executors[-1]
    yield make
    for executor in executors:
        executor.shutdown()


def fails(call, error, *texts):
    """What the call raises, soon."""
    start = time.monotonic()
    with pytest.raises(error) as caught:
        call()
    assert time.monotonic() - start < SOON_S
    for text in texts:
        assert text in str(caught.value), str(caught.value)
    return caught.value


def node():
    return ray.get_runtime_context().get_node_id()


def test_an_exception_on_all_ranks_leaves_the_job_as_it_is(kept):
    generation = kept.adapter.coordinator.generation
    error = fails(lambda: kept.run(lambda: 1 / 0), ZeroDivisionError, "division by zero",
                  f" on node {node()}")
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert kept.run(cases.sum_of_ranks) == [3] * 3
    assert kept.adapter.coordinator.generation == generation


def test_an_exception_on_one_rank_frees_the_others(kept):
    for rank in (1, 0):
        fails(lambda: kept.run(cases.wait_for, args=[rank, "raise"]), ZeroDivisionError,
              f"division by zero on rank {rank}", f"rank {rank} on node {node()}")
        assert kept.run(cases.sum_of_ranks) == [3] * 3      # in a new generation


def test_an_exception_before_init_frees_those_who_wait_there(kept):
    kept.run(cases.hvd.shutdown)
    fails(lambda: kept.run(cases.never_comes, args=[2, "raise"]), ValueError,
          "no init for me", "rank 2 on node")
    assert kept.run(cases.sum_of_ranks) == [3] * 3


def test_references_fail_as_well(kept):
    refs = kept.run_remote(cases.wait_for, args=[1, "raise"])
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        ray.get(refs[1], timeout=SOON_S)
    for rank in (0, 2):
        with pytest.raises(cases.hvd.HorovodInternalError, match="rank 1 on node.*division"):
            ray.get(refs[rank], timeout=SOON_S)
    assert time.monotonic() - start < SOON_S
    assert kept.run(cases.sum_of_ranks) == [3] * 3


def test_an_interrupted_call_frees_the_workers(kept, monkeypatch):
    """Ctrl-C in a notebook; Ray prints nothing of what the aborted workers raise."""
    real, printed = ray.wait, []
    monkeypatch.setattr("ray._private.worker._unhandled_error_handler", printed.append)

    def interrupted(*args, **kwargs):
        monkeypatch.setattr(ray, "wait", real)
        assert not real(*args, **dict(kwargs, timeout=1.0))[0]
        raise KeyboardInterrupt
    monkeypatch.setattr(ray, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.run(cases.wait_until_freed)
    gc.collect()
    assert kept.run(cases.sum_of_ranks) == [3] * 3 and printed == []


@pytest.mark.parametrize("what", ["kill", "exit"])
def test_a_worker_that_dies_in_a_collective(fresh, what):
    executor = fresh()
    executor.start()
    pid = executor.run(cases.place)[1]["pid"]
    error = fails(lambda: executor.run(cases.wait_for, args=[1, what]), RayActorError,
                  f"rank 1 on node {node()}", f"pid {pid}", "died")
    assert "HorovodInternalError" not in str(error)
    fails(lambda: executor.run(cases.place), RuntimeError, "rank 1 on node", "has died",
          "start it again")
    start = time.monotonic()
    executor.shutdown()
    assert time.monotonic() - start < SOON_S
    if what == "exit":
        return
    executor.start()
    assert executor.run(cases.sum_of_ranks) == [1] * 2
    fails(lambda: executor.run(cases.never_comes, args=[0, "kill"]), RayActorError,
          "rank 0 on node")


def test_an_executable_that_cannot_be_made(fresh):
    executor = fresh()
    fails(lambda: executor.start(executable_cls=cases.Broken), LookupError,
          "no data for rank 1", "rank 1 on node")
    with pytest.raises(RuntimeError, match="could not be started"):
        executor.execute(print)
    executor.start(executable_cls=cases.Doubler, executable_args=[1])

    # An object that was left in the middle of something is not taken up again; it can be
    # asked, but its collectives say what has happened.
    fails(lambda: executor.run(cases.wait_for, args=[0, "raise"]), ZeroDivisionError)
    assert executor.execute(lambda doubler: doubler.value) == [0, 1]
    fails(lambda: executor.execute(lambda doubler: doubler.sum()),
          cases.hvd.HorovodInternalError, "division by zero on rank 0")


def test_shutdown_while_workers_hang(fresh):
    executor = fresh()
    executor.start()
    refs = executor.run_remote(cases.wait_for, args=[1, "sleep"])
    start = time.monotonic()
    executor.shutdown()
    assert time.monotonic() - start < SOON_S
    for ref in refs:
        with pytest.raises((RayActorError, cases.hvd.HorovodInternalError)):
            ray.get(ref, timeout=SOON_S)


def test_calls_of_several_threads_do_not_cross(kept):
    """Every call is a collective: with another order on another rank they would hang."""
    results = []

    def call(number):
        for _ in range(5):
            results.append(kept.run(cases.sum_of_ranks, kwargs={"offset": number}))
    threads = [threading.Thread(target=call, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [[3 + n] * 3 for n in range(4) for _ in range(5)]


def test_which_failure_is_the_cause():
    internal = cases.hvd.HorovodInternalError
    lost = internal("rank 2 was lost")
    lost.rank = 2

    def first(*errors):
        failure = _calls.Failure()
        failure.errors.update(errors)
        return failure.rank()
    assert first((0, lost), (2, ValueError("it was me")), (1, KeyError())) == 2
    assert first((0, lost), (1, internal("x")), (2, internal("y"))) == 2
    assert first((1, internal("mismatch")), (0, internal("mismatch"))) == 1

    memory = _calls.named(ray.exceptions.OutOfMemoryError("too much"), "rank 3 on node x")
    assert isinstance(memory, ActorDiedError) and str(memory) == "rank 3 on node x died: too much"
    node = _calls.named(ray.exceptions.ActorUnavailableError("socket closed", None),
                        "rank 3 on node x")         # its node was lost
    assert isinstance(node, ActorDiedError) and "rank 3 on node x died: " in str(node)
    assert str(_calls.named(node, "rank 1")) == str(node), "named once"
    cancelled = _calls.named(ray.exceptions.TaskCancelledError(error_message="by you"),
                             "rank 3 on node x")
    assert str(cancelled) == "rank 3 on node x failed: by you"
