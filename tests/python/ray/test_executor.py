"""RayExecutor: jobs of a fixed size that end well."""
import os
import pathlib
import socket
import threading

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray_cases as cases  # noqa: E402
import ray_support  # noqa: E402

from horovod.ray import BaseHorovodWorker, RayExecutor, _actor, utils  # noqa: E402
from horovod.runner.common.util.timeout import Timeout  # noqa: E402

LAYOUTS = {"workers": dict(num_workers=4),
           "hosts": dict(num_hosts=1, num_workers_per_host=4)}


def new(**kwargs):
    settings = {name: kwargs.pop(name) for name in ("timeout_s", "placement_group_timeout_s")
                if name in kwargs}
    return RayExecutor(RayExecutor.create_settings(**settings), **kwargs)


@pytest.fixture(scope="module", params=LAYOUTS)
def job(request):
    """An executor with GPUs and an executable, for many calls."""
    ray_support.use_ray("shared")
    executor = new(use_gpu=True, **LAYOUTS[request.param])
    executor.start(executable_cls=cases.Doubler, executable_args=[2],
                   executable_kwargs={"offset": 0}, extra_env_vars={"MINE": 7})
    yield executor
    executor.shutdown()


def test_every_rank_has_its_place(job):
    places = job.run(cases.place)
    assert [p["rank"] for p in places] == [0, 1, 2, 3]
    assert [p["local_rank"] for p in places] == [0, 1, 2, 3]
    assert {(p["size"], p["local_size"], p["cross_size"]) for p in places} == {(4, 4, 1)}
    assert len({p["pid"] for p in places}) == 4
    assert {p["sum"] for p in places} == {6.0}


def test_the_same_processes_serve_all_calls(job):
    pids = job.run(os.getpid)
    assert job.execute(lambda _: os.getpid()) == pids
    assert ray.get(job.run_remote(os.getpid)) == pids
    assert job.execute_single(lambda _: os.getpid()) == pids[0]


def test_arguments_and_results_in_rank_order(job):
    assert job.run(cases.zero_times_rank, args=[0]) == [0] * 4
    assert ray.get(job.run_remote(cases.zero_times_rank, args=[0])) == [0] * 4
    assert job.run(cases.sum_of_ranks, args=[10], kwargs={"offset": 1}) == [61] * 4
    assert ray.get(job.run_remote(cases.sum_of_ranks, kwargs={"factor": 2})) == [12] * 4


def test_hostnames(job):
    assert job.execute(lambda _: socket.gethostname()) == [socket.gethostname()] * 4


def test_executables(job):
    assert set(job.execute(lambda doubler: doubler.value)) == {0, 2, 4, 6}
    first = job.execute(lambda doubler: doubler.count())
    assert job.execute(lambda doubler: doubler.count()) == [n + 1 for n in first]
    assert job.execute_single(lambda doubler: doubler.value) == 0
    assert job.execute(lambda doubler: doubler.sum()) == [12.0] * 4


def test_all_ranks_of_a_node_see_all_its_gpus(job):
    seen = job.run(cases.variables, args=["CUDA_VISIBLE_DEVICES"])
    lists = [v["CUDA_VISIBLE_DEVICES"].split(",") for v in seen]
    assert all(one == lists[0] for one in lists)
    assert sorted(lists[0]) == ["0", "1", "2", "3"]


def test_variables_of_the_workers(job):
    names = ["HOROVOD_HOSTNAME", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
             "HOROVOD_LOCAL_SIZE", "HOROVOD_CROSS_RANK", "HOROVOD_CROSS_SIZE",
             "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT",
             "HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS", "HOROVOD_GLOO_IFACE",
             "NCCL_SOCKET_IFNAME", "MINE", "HOROVOD_KEY", "HOROVOD_KEY_FD"]
    seen = job.run(cases.variables, args=names)[3]
    assert seen == dict(zip(names, [
        ray.get_runtime_context().get_node_id(), "3", "4", "3", "4", "0", "1",
        ray.util.get_node_ip_address(), str(job.adapter.coordinator.global_rendezv_port),
        "gloo", "gloo", "lo", "lo", "7", None, None]))


def test_ranks_of_a_node_share_memory(job):
    def segments():
        return sum("memfd:" in row for row in pathlib.Path("/proc/self/maps").open())
    assert all(count > 0 for count in job.run(segments))


def test_values_for_callbacks(job):
    """Every value of every rank, in the order of each rank, before run returns."""
    values, others = [], []
    assert job.run(cases.log_some, args=[5], callbacks=[values.append, others.append]) == \
        [0, 1, 2, 3]
    assert values == others and len(values) == 20
    for rank in range(4):
        assert [v["i"] for v in values if v["rank"] == rank] == list(range(5))

    def one_that_fails(value):
        raise RuntimeError("a callback that fails does not end the call")
    values.clear()
    job.execute(lambda _: cases.log_some(1), callbacks=[one_that_fails, values.append])
    assert len(values) == 4
    assert not [t for t in threading.enumerate() if "callbacks" in t.name]


def test_an_abort_from_another_thread_frees_a_blocked_rank(job):
    """Last on this job: it ends it."""
    texts = job.run(cases.abort_from_a_thread)
    assert all("enough of it" in text for text in texts)


# -- the worker class -------------------------------------------------------------------------

def test_the_worker_outside_an_actor(shared_ray):
    before = dict(os.environ)

    class Mine(BaseHorovodWorker):
        def twice(self):
            return 2 * self.execute(len)

    try:
        worker = Mine(world_rank=2, world_size=5)
        assert os.environ["HOROVOD_RANK"] == "2" and os.environ["HOROVOD_SIZE"] == "5"
        assert os.environ["HOROVOD_HOSTNAME"] == worker.node_id() == _actor.node_id()
        assert worker.hostname() == socket.gethostname()
        assert worker.get_gpu_ids() == []
        worker.update_env_vars({"HVD_A": 3})
        assert worker.env_vars()["HVD_A"] == "3"
        assert BaseHorovodWorker.executable is None
        worker.start_executable()
        assert worker.execute(lambda executable: executable) is None
        worker.start_executable(list, executable_args=[[1, 2]])
        assert worker.twice() == 4
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_facts_and_interfaces(shared_ray):
    facts = _actor.facts()
    assert facts["pid"] == os.getpid() and facts["hostname"] == socket.gethostname()
    assert facts["node_ip"] in _actor.interfaces()[facts["interface"]]
    name = ray.nodes()[0]["NodeManagerAddress"]

    class Far:                          # a name that is not this machine, for the probes
        nics, verbose, key = None, 1, None
        start_timeout = Timeout(60, message="{activity}")

    assert utils._is_here(name)
    utils_is_here, utils._is_here = utils._is_here, lambda name: False
    try:
        assert utils.detect_nics(Far, [name]) == [facts["interface"]]
    finally:
        utils._is_here = utils_is_here
    assert utils.map_blocking(lambda n: ray.put(n * n), [1, 2, 3]) == [1, 4, 9]


def test_abort_without_a_job_is_harmless():
    _actor.abort("nobody is there")
    _actor.leave()
