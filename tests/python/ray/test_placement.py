"""Placement groups, and what a job leaves behind: nothing."""
import os
import pathlib
import time

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_cases as cases  # noqa: E402
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: E402

from horovod.ray import RayExecutor  # noqa: E402
from horovod.ray.strategy import room  # noqa: E402

LAYOUTS = {"workers": dict(num_workers=4),
           "hosts": dict(num_hosts=1, num_workers_per_host=4)}


def new(placement_group_timeout_s=100, **kwargs):
    return RayExecutor(RayExecutor.create_settings(
        placement_group_timeout_s=placement_group_timeout_s), **kwargs)


def groups():
    return [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]


def wait_until(condition, what, limit_s=20):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def all_cpus_are_free():
    wait_until(lambda: ray.available_resources().get("CPU") == 8.0, ray.available_resources)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_room(shared_ray, layout):
    all_cpus_are_free()
    executor = new(cpus_per_worker=20, placement_group_timeout_s=1, **LAYOUTS[layout])
    with pytest.raises(TimeoutError, match="available.*CPU.*requested"):
        executor.start()
    executor.shutdown()
    wait_until(lambda: not groups(), groups)


def test_a_group_of_its_own(shared_ray):
    executor = new(num_workers=1)
    executor.start()
    assert executor.adapter.strategy._created_placement_group
    assert len(groups()) == 1
    executor.shutdown()
    wait_until(lambda: not groups(), groups)
    all_cpus_are_free()


@ray.remote
class Inside:
    """Lives in a placement group and runs an executor there."""

    def run(self, **kwargs):
        executor = new(**kwargs)
        executor.start()
        created = executor.adapter.strategy._created_placement_group
        ranks = [p["rank"] for p in executor.run(cases.place)]
        executor.shutdown()
        return created, ranks, len(groups())


def test_the_group_of_the_caller(shared_ray):
    group = ray.util.placement_group([{"CPU": 1}] * 4)
    assert group.wait(30)
    actor = Inside.options(num_cpus=0, scheduling_strategy=PlacementGroupSchedulingStrategy(
        group)).remote()
    assert ray.get(actor.run.remote(num_workers=2), timeout=90) == (False, [0, 1], 1)
    assert ray.get(actor.run.remote(num_hosts=1, num_workers_per_host=2), timeout=90) == (
        False, [0, 1], 1)
    assert ray.get(actor.run.remote(num_workers=1, use_current_placement_group=False),
                   timeout=90)[0] is True
    assert len(groups()) == 1
    ray.kill(actor)
    ray.util.remove_placement_group(group)
    all_cpus_are_free()


def test_a_job_too_big_for_the_group_of_the_caller(shared_ray):
    """Is an error at once, which names the group and what to do."""
    group = ray.util.placement_group([{"CPU": 1}] * 3)
    assert group.wait(30)
    where = PlacementGroupSchedulingStrategy(group)
    for cpus, workers, said in ((0, 4, ""), (1, 3, "the caller holds {'CPU': 1.0}")):
        actor = Inside.options(num_cpus=cpus, scheduling_strategy=where).remote()
        ray.get(actor.__ray_ready__.remote())
        start = time.monotonic()
        with pytest.raises(ValueError, match="use_current_placement_group=False") as caught:
            ray.get(actor.run.remote(num_workers=workers))
        assert group.id.hex() in str(caught.value) and said in str(caught.value)
        assert time.monotonic() - start < 60            # was 100, or the limit of the user
        ray.kill(actor)
    actor = Inside.options(num_cpus=0, scheduling_strategy=where).remote()
    holder = Inside.options(num_cpus=1, scheduling_strategy=where).remote()
    ray.get(holder.__ray_ready__.remote())
    with pytest.raises(TimeoutError, match="free after 1 s"):
        ray.get(actor.run.remote(num_workers=3, placement_group_timeout_s=1))
    for each in (actor, holder):
        ray.kill(each)
    ray.util.remove_placement_group(group)
    all_cpus_are_free()


def test_how_many_fit():
    bundles = [{"CPU": 1}, {"CPU": 4, "GPU": 1}, {"CPU": 2}]
    assert room(bundles, {"CPU": 1}) == 7 and room(bundles, {"CPU": 2}) == 3
    assert room(bundles, {"CPU": 1, "GPU": 0.5}) == 2 and room(bundles, {"CPU": 0.1}) == 70
    assert room(bundles, {"CPU": 2}, {"CPU": 1}) == 3       # the caller is in the first
    assert room(bundles, {"CPU": 2}, {"CPU": 2}) == 2
    assert room(bundles, {}) > 1e9 and room([], {"CPU": 1}) == 0


# -- what is left -----------------------------------------------------------------------------

def test_a_job_leaves_nothing_and_another_one_works(shared_ray):
    """Also: a small training with torch; the wishes of the user reach the workers."""
    os.environ["HOROVOD_CYCLE_TIME"] = "2.5"
    try:
        before = None
        for _ in range(2):
            executor = new(num_workers=2)
            executor.start()
            assert cases.threads()
            assert executor.run(cases.variables, args=["HOROVOD_CYCLE_TIME"]) == [
                {"HOROVOD_CYCLE_TIME": "2.5"}] * 2
            if before is None:
                (rank0, weights0), (rank1, weights1) = executor.run(cases.train_torch)
                assert {rank0, rank1} == {0, 1} and weights0 == weights1
            pids = executor.run(os.getpid)
            with pytest.raises(RuntimeError, match="started already"):
                executor.start()
            executor.shutdown()
            executor.shutdown()
            assert cases.threads() == []
            wait_until(lambda: not any(os.path.exists(f"/proc/{p}") for p in pids), list)
            listening = sockets()
            assert before is None or listening <= before
            before = listening
        with pytest.raises(RuntimeError, match="has been shut down"):
            executor.run(os.getpid)
    finally:
        del os.environ["HOROVOD_CYCLE_TIME"]
    wait_until(lambda: not groups(), groups)
    all_cpus_are_free()


def sockets():
    found = 0
    for entry in pathlib.Path("/proc/self/fd").iterdir():
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found
