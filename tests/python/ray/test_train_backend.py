"""The backend of Ray Train on a worker group that has the stable methods and nothing else."""
import pickle
import time

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

from horovod import _core
from horovod.ray import _actor, _train_backend
from horovod.ray._train_backend import HorovodBackend
from horovod.ray.train import HorovodConfig


class Ref:
    """An answer of a worker; None: it never comes."""

    def __init__(self, call):
        self.call = call


class FakeRay:
    """ray.get and ray.wait of Ref objects; nobody really waits."""

    def __init__(self):
        self.waits = []

    def get(self, refs, timeout):
        if any(ref.call is None for ref in refs):
            raise GetTimeoutError(f"after {timeout}")
        return [ref.call() for ref in refs]

    def wait(self, refs, num_returns, timeout):
        self.waits.append(timeout)
        ready = [ref for ref in refs if ref.call is not None]
        return ready, [ref for ref in refs if ref.call is None]


class Group:
    """One worker per letter of the nodes; a node is its letter."""

    def __init__(self, nodes, host="same"):
        self.nodes, self.host = nodes, host
        self.given, self.aborted, self.silent, self.broken = {}, [], set(), set()
        self.reasons = {}

    def __len__(self):
        return len(self.nodes)

    def execute(self, fn, *args, **kwargs):
        raise AssertionError("execute has no limit")

    execute_single = execute

    def execute_async(self, fn, *args):
        return [self.execute_single_async(rank, fn, *args) for rank in range(len(self))]

    def execute_single_async(self, rank, fn, *args):
        pickle.dumps(fn)                        # by reference
        return Ref(None if rank in self.silent else lambda: self._run(rank, fn, *args))

    def get_resources_per_worker(self):
        return {"CPU": 1}

    def _run(self, rank, fn, *args):
        if rank in self.broken:
            raise ActorDiedError()
        if fn is _actor.facts:
            return {"node_id": self.nodes[rank], "node_ip": "127.0.0.1", "pid": rank,
                    "hostname": self.host, "gpu_ids": [], "interface": "lo"}
        if fn is _actor.setup:
            self.given[rank] = args
            return None
        if fn is _actor.failure:
            return self.reasons.get(rank, "")
        assert fn is _actor.abort
        self.aborted.append((rank, *args))
        return None


@pytest.fixture
def fake(monkeypatch):
    stand_in = FakeRay()
    monkeypatch.setattr(_train_backend, "ray", stand_in)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    return stand_in


@pytest.fixture
def backend(fake):
    result = HorovodBackend.__new__(HorovodBackend)     # as it comes to the controller
    yield result
    result._stop()


def numbers(group, name):
    return [int(group.given[rank][0]["HOROVOD_" + name]) for rank in range(len(group))]


def test_topology_is_by_node_id(backend):
    group = Group("abab")                               # equal names, ranks not contiguous
    backend.on_start(group, HorovodConfig())
    assert numbers(group, "RANK") == [0, 1, 2, 3]
    assert numbers(group, "SIZE") == [4, 4, 4, 4]
    assert numbers(group, "LOCAL_RANK") == [0, 0, 1, 1]
    assert numbers(group, "LOCAL_SIZE") == [2, 2, 2, 2]
    assert numbers(group, "CROSS_RANK") == [0, 1, 0, 1]
    assert numbers(group, "CROSS_SIZE") == [2, 2, 2, 2]
    assert [group.given[r][0]["HOROVOD_HOSTNAME"] for r in range(4)] == list("abab")


def test_unequal_nodes(backend):
    group = Group("aaab")
    backend.on_start(group, HorovodConfig())
    assert numbers(group, "LOCAL_SIZE") == [3, 3, 3, 1]
    assert numbers(group, "CROSS_SIZE") == [2, 1, 1, 2]
    assert numbers(group, "CROSS_RANK") == [0, 0, 0, 1]


def test_the_key_is_an_argument_and_no_variable(backend):
    group, key = Group("aa"), _core.generate_key()
    backend.on_start(group, HorovodConfig(key=key))
    for variables, given in group.given.values():
        assert given == backend._coordinator.key != key
        assert not any("KEY" in name for name in variables)
        assert not any(key.hex() in str(value) for value in variables.values())


def test_the_users_variables_win_where_they_may(backend):
    group = Group("aa")
    config = HorovodConfig(timeout_s=77, variables={"HOROVOD_CYCLE_TIME": "3"})
    backend.on_start(group, config)
    variables = group.given[1][0]
    assert variables["HOROVOD_CYCLE_TIME"] == "3"
    assert 70 <= float(variables["HOROVOD_GLOO_TIMEOUT_SECONDS"]) <= 77
    config.variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "9"
    backend.on_start(group, config)
    assert group.given[1][0]["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "9"


def test_every_attempt_is_a_new_generation(backend):
    group, config = Group("aa"), HorovodConfig()
    seen = set()
    for _ in range(3):
        backend.on_start(group, config)
        variables = group.given[0][0]
        seen.add((variables["HOROVOD_GENERATION"], variables["HOROVOD_JOB_ID"]))
        backend.on_shutdown(group, config)
    assert len({generation for generation, _ in seen}) == 3
    assert len({job for _, job in seen}) == 3


def test_a_left_over_rendezvous_is_stopped(backend):
    config = HorovodConfig()
    backend.on_start(Group("aa"), config)
    first = backend._coordinator
    backend.on_start(Group("a"), config)                # no on_shutdown: it was aborted
    assert first.rendezvous is None and backend._coordinator is not first


def test_silent_workers_are_retried_and_named_then_given_up(backend):
    group, config = Group("aaa"), HorovodConfig(timeout_s=4)
    group.silent = {1, 2}
    for _ in range(2):
        with pytest.raises(RayActorError, match="rank 1, 2 did not tell its node.*=4") as e:
            backend.on_start(group, config)
        assert pickle.loads(pickle.dumps(e.value)) is not None
        assert backend._coordinator is None
    with pytest.raises(TimeoutError, match="given up after 3 attempts"):
        backend.on_start(group, config)


def test_an_answer_forgives_the_silence_before(backend):
    config = HorovodConfig()
    for silent in ({0}, {0}, set(), {0}, {0}):
        group = Group("a")
        group.silent = silent
        if silent:
            with pytest.raises(RayActorError):
                backend.on_start(group, config)
        else:
            backend.on_start(group, config)


def test_a_dead_worker_passes_as_it_is(backend):
    group = Group("aa")
    group.broken = {1}
    with pytest.raises(ActorDiedError):
        backend.on_start(group, HorovodConfig())
    assert backend._coordinator is None


def test_a_group_that_did_not_start_is_ended(backend):
    group, config = Group("aa"), HorovodConfig()
    ended = []

    def end():
        ended.append(1)
        backend.on_shutdown(group, config)              # as Ray's group does
        raise RuntimeError("and what else can go wrong")

    group.shutdown, group.silent = end, {1}
    with pytest.raises(RayActorError, match="rank 1"):
        backend.on_start(group, config)
    assert ended == [1]


def test_shutdown_tells_the_living_and_swallows_everything(backend, fake):
    group, config = Group("aaa"), HorovodConfig()
    backend.on_start(group, config)
    server = backend._coordinator.rendezvous
    group.silent, group.broken = {0}, {1}
    backend.on_shutdown(group, config)
    assert fake.waits == [_train_backend._ASK_S, _train_backend._ABORT_S], "bounded waits"
    with pytest.raises(ValueError, match="closed"):
        server.status()
    group.execute_async = None                          # and now nothing works at all
    backend._coordinator = group
    backend.on_shutdown(group, config)
    assert backend._coordinator is None


def test_who_is_told_hears_the_reason(backend):
    """Of a rank whose loop has failed before hvd.init(), where the others wait for it."""
    group, config = Group("aaa"), HorovodConfig()
    backend.on_start(group, config)
    told = []
    backend._coordinator.abort = told.append
    group.broken, group.reasons = {0}, {1: "the training loop of rank 1 raised KeyError: 7"}
    backend.on_shutdown(group, config)
    assert told == [f"{_train_backend._OVER}: the training loop of rank 1 raised KeyError: 7"]


def test_it_pickles_before_and_after_a_start(backend):
    again = pickle.loads(pickle.dumps(HorovodBackend()))
    assert again._generation == 0 and again._coordinator is None
    backend.on_start(Group("aa"), HorovodConfig())
    assert pickle.loads(pickle.dumps(backend))._coordinator is None


def test_it_shares_devices_and_has_no_replica_groups():
    assert HorovodBackend.share_cuda_visible_devices is True
    assert HorovodBackend.has_replica_groups is False
    assert HorovodConfig().backend_cls is HorovodBackend and HorovodConfig().framework is None


# -- around the loop --------------------------------------------------------------------

def test_a_gpu_worker_gets_its_device(monkeypatch):
    import sys
    import types
    import ray
    from horovod.ray._train_worker import LoopContext
    chosen = []
    cuda = types.SimpleNamespace(is_available=lambda: True, set_device=chosen.append)
    device = types.SimpleNamespace(type="cuda", index=1)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "ray.train.torch",
                        types.SimpleNamespace(get_device=lambda: device))
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: [])
    with LoopContext():
        assert chosen == []                             # a CPU worker: torch is not asked
    monkeypatch.setattr(ray, "get_gpu_ids", lambda: ["3"])
    with LoopContext():
        assert chosen == [device]


def test_the_loop_leaves_the_job_it_has_joined():
    from horovod.ray._train_worker import LoopContext
    with LoopContext():
        _core.init()
        assert _core.is_initialized()
    assert not _core.is_initialized()
    with pytest.raises(KeyError), LoopContext():
        raise KeyError("before init")
    assert _actor.failure() == "the training loop of rank 0 raised KeyError: 'before init'"
    _actor.note_failure("")
    _core.init()
    with LoopContext():
        pass
    assert _core.is_initialized(), "a job of before stays"
    _core.shutdown()


def test_a_limit_of_setup_is_a_limit_of_the_whole(backend):
    class Slow(FakeRay):
        limits = []

        def get(self, refs, timeout):
            self.limits.append(timeout)
            time.sleep(0.05)
            return super().get(refs, timeout)

    _train_backend.ray = Slow()
    backend.on_start(Group("aa"), HorovodConfig(timeout_s=2))
    assert 0 < Slow.limits[1] < Slow.limits[0] - 0.04
