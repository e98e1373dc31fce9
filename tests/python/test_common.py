"""The framework-free layer, without a job: util, exceptions, data, elastic logic, stubs."""
import ast
import inspect
import pathlib
import queue
import warnings
from unittest import mock

import pytest

import horovod
from horovod import _core
from horovod.common import elastic, uncaught, util
from horovod.common.exceptions import (HorovodInternalError, HorovodVersionMismatchError,
                                       HostsUpdatedInterrupt, get_version_mismatch_message)
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.data import AsyncDataLoaderMixin, BaseDataLoader


def test_exceptions():
    assert issubclass(HorovodInternalError, RuntimeError)
    assert issubclass(HostsUpdatedInterrupt, RuntimeError)
    assert HostsUpdatedInterrupt(True).skip_sync is True
    with pytest.raises(TypeError):
        HostsUpdatedInterrupt()
    e = HorovodVersionMismatchError("torch", "2.0", "1.0")
    assert isinstance(e, ImportError) and (e.name, e.version, e.installed_version) == \
        ("torch", "2.0", "1.0")
    assert "2.0" in get_version_mismatch_message("torch", "2.0", "1.0")


def test_summary_of_an_exception():
    class Silent(Exception):
        def __str__(self):
            raise KeyError

    def of(error, trace=None):
        return uncaught.summary(error, trace)
    assert of(ValueError("a\nb")) == "ValueError: a" and of(KeyError()) == "KeyError"
    assert of(Silent()) == "Silent: <exception str() failed>"
    try:
        ast.literal_eval("1 +")
    except SyntaxError as e:
        assert of(e, e.__traceback__).endswith(" in test_summary_of_an_exception)")


def test_split_list():
    assert util.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert util.split_list([1], 3) == [[1], [], []]


def test_powers_of_two():
    assert [n for n in range(9) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8]


def test_env(monkeypatch):
    import os
    monkeypatch.setenv("HVD_A", "1")
    monkeypatch.delenv("HVD_B", raising=False)
    with util.env(HVD_A="2", HVD_B="3", HVD_C=None):
        assert os.environ["HVD_A"] == "2" and os.environ["HVD_B"] == "3"
    assert os.environ["HVD_A"] == "1" and "HVD_B" not in os.environ


def test_cache_keeps_the_first_result():
    calls = []

    @util._cache
    def f(x, y=0):
        calls.append(x)
        return len(calls)
    assert f(1) == f(1) == 1 and f(2) == 2 and f(1, y=1) == 3


def test_versions():
    assert util.is_version_greater_equal_than("2.10.0", "2.9.1")
    assert not util.is_version_greater_equal_than("2.8", "2.9.1")
    for bad in (("2.0", "2.0"), (2.0, "2.0.0")):
        with pytest.raises(ValueError):
            util.is_version_greater_equal_than(*bad)


def test_average_compatibility():
    class Ops:
        Average, Sum = 0, 1
    f = util.get_average_backwards_compatibility_fun(Ops)
    assert f(None, None) == 0 and f(1, None) == 1
    with pytest.warns(DeprecationWarning):
        assert f(None, False) == 1
    with pytest.raises(ValueError):
        f(1, True)


def test_extensions_are_asked_in_a_child():
    assert util.extension_available("torch")
    assert not util.extension_available("mxnet")
    assert util.gloo_built() is True and util.mpi_built() is False and util.nccl_built() >= 0
    assert util.gpu_available("torch") in (True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        util.check_installed_version("pytorch", "0.0")
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")


def test_process_set_objects():
    assert ProcessSet([2, 0, 1]).ranks == [0, 1, 2]
    assert ProcessSet(reversed(range(3))).ranks == [0, 1, 2]
    assert ProcessSet(range(2)).process_set_id is None and ProcessSet([0]).size() is None
    assert str(ProcessSet([1])) == "ProcessSet(process_set_id=None, ranks=[1], mpi_comm=None)"
    assert global_process_set.process_set_id == 0
    for bad in (["a"], 5):
        with pytest.raises(ValueError):
            ProcessSet(bad)


class Loader(BaseDataLoader):
    def __init__(self, n=5, fail=False):
        self.n, self.fail = n, fail

    def __len__(self):
        return self.n

    def _iterate(self):
        for i in range(self.n):
            if self.fail and i == 2:
                raise KeyError("as planned")
            yield i

    def _process_batch(self, batch):
        return batch * 10


class AsyncLoader(AsyncDataLoaderMixin, Loader):
    pass


def test_loaders(capsys):
    assert list(Loader()) == [0, 10, 20, 30, 40]
    for size in (0, 1, 64):
        loader = AsyncLoader(async_loader_queue_size=size, n=5)
        assert len(loader) == 5
        for _ in range(3):
            assert list(loader) == [0, 10, 20, 30, 40]
        loader.close_async_loader()
        loader.close_async_loader()
    assert capsys.readouterr().out == ""
    with pytest.raises(NotImplementedError):
        len(BaseDataLoader())
    with pytest.raises(NotImplementedError):
        list(BaseDataLoader())


def test_a_loader_that_fails():
    loader = AsyncLoader(async_loader_queue_size=2, n=5, fail=True)
    with pytest.raises(KeyError):
        list(loader)
    loader.close_async_loader()


def test_closing_a_loader_early():
    loader = AsyncLoader(async_loader_queue_size=1, n=1000)
    next(iter(loader))
    loader.close_async_loader()
    assert not loader.thread.is_alive()


def state(**kwargs):
    return elastic.ObjectState(bcast_object=lambda x: x, get_rank=lambda: 0, **kwargs)


def test_object_state():
    s = state(epoch=1, batch=2)
    s.epoch = 5
    s.restore()
    assert s.epoch == 1
    s.epoch = 6
    s.commit()
    s.epoch = 7
    s.restore()
    assert s.epoch == 6 and isinstance(s._host_messages, queue.Queue)
    s.sync()
    with pytest.raises(NotImplementedError):
        elastic.State(None, None).save()


def test_host_updates():
    s = state(a=1)
    s.check_host_updates()
    for result, skip in ((1, True), (2, False), (3, False)):
        s.on_hosts_updated(s._last_updated_timestamp + 1, result)
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            s.check_host_updates()
        assert caught.value.skip_sync is skip
    s.on_hosts_updated(s._last_updated_timestamp, 1)        # not newer
    s.check_host_updates()
    s.on_hosts_updated(s._last_updated_timestamp + 1, 1)
    s.on_reset()                                            # old messages are forgotten
    s.check_host_updates()


def test_run_function():
    s, events = mock.MagicMock(), []
    s.sync.side_effect = lambda: events.append("sync")
    s.restore.side_effect = lambda: events.append("restore")
    s.on_reset.side_effect = lambda: events.append("on_reset")
    errors = [HorovodInternalError("x"), HostsUpdatedInterrupt(False),
              HostsUpdatedInterrupt(True), None]

    def func(given, arg):
        assert given is s and arg == 3
        events.append("call")
        e = errors.pop(0)
        if e is not None:
            raise e
        return "done"
    wrapped = elastic.run_fn(func, lambda: events.append("reset"))
    assert wrapped(s, 3) == "done" and wrapped.__name__ == "func"
    assert events == ["sync", "call", "restore", "reset", "on_reset",
                      "sync", "call", "reset", "on_reset",
                      "sync", "call", "reset", "on_reset", "call"]

    def broken(given):
        raise KeyError("leaves the wrapper")
    with pytest.raises(KeyError):
        elastic.run_fn(broken, None)(s)


def test_reset_callbacks():
    s, called = state(a=1), []
    s.register_reset_callbacks([lambda: called.append(1), lambda: called.append(2)])
    s.on_reset()
    assert called == [1, 2]


def test_the_stub_tells_the_truth():
    """_core.pyi names exactly what _core has."""
    path = pathlib.Path(horovod.__file__).with_name("_core.pyi")
    tree = ast.parse(path.read_text())
    stub = {n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    stub |= {n.target.id for n in tree.body if isinstance(n, ast.AnnAssign)}
    real = {n for n in dir(_core) if not n.startswith("__")}
    assert stub == real
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Reducer", "Server"):
            methods = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
            methods |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign)}
            assert methods - {"__init__"} == {n for n in dir(getattr(_core, node.name))
                                              if not n.startswith("__")}


def test_every_name_and_signature():
    """Names, order and defaults of the parameters, as scripts rely on them."""
    import horovod.torch as hvd
    want = {
        "allreduce": "tensor average=None name=None compression op=None prescale_factor=1.0 "
                     "postscale_factor=1.0 process_set",
        "allreduce_async": "tensor average=None name=None op=None prescale_factor=1.0 "
                           "postscale_factor=1.0 process_set",
        "grouped_allreduce": "tensors average=None name=None compression op=None "
                             "prescale_factor=1.0 postscale_factor=1.0 process_set",
        "grouped_allreduce_async": "tensors average=None name=None op=None "
                                   "prescale_factor=1.0 postscale_factor=1.0 process_set",
        "sparse_allreduce_async": "tensor name op process_set",
        "allgather": "tensor name=None process_set",
        "grouped_allgather": "tensors name=None process_set",
        "broadcast": "tensor root_rank name=None process_set",
        "alltoall": "tensor splits=None name=None process_set",
        "reducescatter": "tensor name=None compression op=0 process_set prescale_factor=1.0 "
                         "postscale_factor=1.0",
        "reducescatter_async": "tensor name=None op=0 process_set prescale_factor=1.0 "
                               "postscale_factor=1.0",
        "grouped_reducescatter": "tensors name=None compression op=0 process_set "
                                 "prescale_factor=1.0 postscale_factor=1.0",
        "grouped_reducescatter_async": "tensors name=None op=0 process_set "
                                       "prescale_factor=1.0 postscale_factor=1.0",
        "broadcast_object": "obj root_rank=0 name=None process_set",
        "allgather_object": "obj name=None process_set",
        "broadcast_parameters": "params root_rank process_set",
        "broadcast_optimizer_state": "optimizer root_rank model=None process_set",
        "DistributedOptimizer": "optimizer named_parameters=None compression "
                                "backward_passes_per_step=1 op=0 "
                                "gradient_predivide_factor=1.0 num_groups=0 groups=None "
                                "sparse_as_dense=False process_set",
        "join": "device=-1 process_set", "barrier": "process_set",
        "start_timeline": "file_path mark_cycles=False",
    }
    for one, other in (("allreduce_", "allreduce_async"), ("allreduce_async_", "allreduce_async"),
                       ("grouped_allreduce_", "grouped_allreduce_async"),
                       ("grouped_allreduce_async_", "grouped_allreduce_async"),
                       ("allgather_async", "allgather"), ("broadcast_async", "broadcast"),
                       ("grouped_allgather_async", "grouped_allgather"),
                       ("broadcast_", "broadcast"), ("broadcast_async_", "broadcast"),
                       ("alltoall_async", "alltoall")):
        want[one] = want[other]
    for name, words in want.items():
        got = []
        for p in inspect.signature(getattr(hvd, name)).parameters.values():
            plain = p.default is inspect.Parameter.empty or p.name in ("compression",
                                                                       "process_set")
            got.append(p.name if plain else f"{p.name}={p.default!r}")
            if p.name == "process_set":
                assert p.default is global_process_set
        assert " ".join(got) == words, name
        assert inspect.getdoc(getattr(hvd, name)), f"{name} has no docstring"
    assert [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product] == list(range(6))
    from horovod.torch import hvd as itself
    assert itself is hvd
    for name in ("mpi_ops", "functions", "compression", "optimizer", "sync_batch_norm",
                 "elastic"):
        assert inspect.ismodule(getattr(hvd, name))
    for name in ("HorovodAllreduce", "HorovodGroupedAllreduce", "HorovodAllgather",
                 "HorovodGroupedAllgather", "HorovodBroadcast", "HorovodAlltoall",
                 "HorovodReducescatter", "HorovodGroupedReducescatter", "synchronize", "poll",
                 "is_homogeneous", "handle_average_backwards_compatibility", "_basics",
                 "_handle_map"):
        assert hasattr(hvd.mpi_ops, name)
    from horovod.torch.elastic import state as module
    for name in ("TorchState", "StateHandler", "ModelStateHandler", "OptimizerStateHandler",
                 "SamplerStateHandler", "get_handler_registry", "set_handler_registry"):
        assert hasattr(module, name)


def test_the_key_and_the_server():
    key = _core.generate_key()
    assert len(key) == 32 and key != _core.generate_key()
    server = _core.Server(key, "job", ["127.0.0.1"], 0, 2, 5.0)
    assert 0 < server.port < 65536 and isinstance(server.status(), str)
    server.close()
    server.close()
    with pytest.raises(ValueError):
        server.status()
    with pytest.raises(ValueError):
        _core.Server(b"short", "job", [], 0, 2, 5.0)
