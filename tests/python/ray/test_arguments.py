"""What can be said without a cluster: names, arguments, settings, warnings."""
import inspect
import os
import stat
import subprocess
import sys
import warnings

import pytest

pytest.importorskip("ray")

import horovod.ray  # noqa: E402
from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger, utils  # noqa: E402
from horovod.ray.adapter import Adapter, BaseParams  # noqa: E402
from horovod.ray.runner import MiniSettings, StaticAdapter, StaticParams  # noqa: E402


def settings(**kwargs):
    return RayExecutor.create_settings(**kwargs)


# -- names ------------------------------------------------------------------------------------

NAMES = {
    "horovod.ray": "RayExecutor BaseHorovodWorker ElasticRayExecutor ray_logger",
    "horovod.ray.runner": "RayExecutor Coordinator MiniSettings StaticParams StaticAdapter",
    "horovod.ray.adapter": "BaseParams Adapter",
    "horovod.ray.elastic_v2": "ElasticParams ElasticAdapter RayHostDiscovery TestDiscovery",
    "horovod.ray.elastic": "ElasticRayExecutor RayHostDiscovery TestDiscovery",
    "horovod.ray.strategy": "create_placement_group BaseStrategy ColocatedStrategy PGStrategy",
    "horovod.ray.worker": "BaseHorovodWorker",
    "horovod.ray.utils": "detect_nics nics_to_env_var map_blocking",
    "horovod.ray.driver_service": "_driver_fn",
    "horovod.ray.ray_logger": "configure log",
    "horovod.runner.common.util.secret": "make_secret_key",
    "horovod.runner.common.util.timeout": "Timeout",
    "horovod.runner.common.util.hosts": "parse_hosts",
    "horovod.runner.elastic.discovery": "HostDiscovery",
    "horovod.runner.elastic.settings": "ElasticSettings",
    "horovod.runner.elastic.driver": "DISCOVER_HOSTS_FREQUENCY_SECS",
    "horovod.runner.util.network": "get_driver_ip",
    "horovod.common.util": "gloo_built",
}


@pytest.mark.parametrize("module", NAMES)
def test_names(module):
    loaded = __import__(module, fromlist=["x"])
    for name in NAMES[module].split():
        assert hasattr(loaded, name), f"{module}.{name}"


def test_import_is_light():
    code = ("import sys, horovod.ray\n"
            "print([m for m in ('torch', 'ray.train', 'pandas', 'numpy') if m in sys.modules "
            "and m != 'numpy'])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            timeout=60, check=True)
    assert result.stdout.strip() == "[]"
    assert set(horovod.ray.__all__) == {"RayExecutor", "BaseHorovodWorker",
                                        "ElasticRayExecutor"}


def parameters(function):
    return {p.name: p.default for p in inspect.signature(function).parameters.values()
            if p.kind is p.POSITIONAL_OR_KEYWORD and p.name not in ("self", "settings")}


def test_signatures():
    assert parameters(RayExecutor) == dict(
        num_workers=None, num_hosts=None, num_workers_per_host=1, cpus_per_worker=1,
        use_gpu=False, gpus_per_worker=None, use_current_placement_group=True,
        min_workers=None, max_workers=None, reset_limit=None, cooldown_range=None,
        elastic_timeout=600, override_discovery=True)
    assert list(parameters(RayExecutor)) == [
        "num_workers", "num_hosts", "num_workers_per_host", "cpus_per_worker", "use_gpu",
        "gpus_per_worker", "use_current_placement_group", "min_workers", "max_workers",
        "reset_limit", "cooldown_range", "elastic_timeout", "override_discovery"]
    assert list(parameters(RayExecutor.create_settings).items())[:5] == [
        ("timeout_s", 30), ("ssh_identity_file", None), ("ssh_str", None),
        ("placement_group_timeout_s", 100), ("nics", None)]
    assert list(parameters(RayExecutor.start)) == [
        "executable_cls", "executable_args", "executable_kwargs", "extra_env_vars"]
    assert list(parameters(RayExecutor.run)) == ["fn", "args", "kwargs", "callbacks"]
    assert list(parameters(ElasticRayExecutor.create_settings)) == [
        "min_num_proc", "max_num_proc", "reset_limit", "elastic_timeout", "timeout_s",
        "ssh_identity_file", "nics", "min_np", "max_np"]


# -- checks of the constructor, in their order ------------------------------------------------

@pytest.mark.parametrize("arguments, text", [
    (dict(max_workers=4), "max_workers"),
    (dict(max_workers=4, min_workers=0), "max_workers"),
    (dict(max_workers=4, min_workers=-1, num_workers=2), "max_workers"),
    (dict(min_workers=1, num_workers=2), "Both `min_workers` and `num_workers` provided."),
    (dict(min_workers=1, num_workers=2, gpus_per_worker=1),
     "Both `min_workers` and `num_workers` provided."),
    (dict(num_workers=2, gpus_per_worker=1), "use_gpu"),
    (dict(num_workers=2, use_gpu=True, gpus_per_worker=0), "at least 1"),
    (dict(num_workers=2, use_gpu=True, gpus_per_worker=-1), "at least 1"),
    (dict(min_workers=1, gpus_per_worker=2), "use_gpu"),
])
def test_wrong_arguments(arguments, text):
    with pytest.raises(ValueError) as caught:
        RayExecutor(settings(), **arguments)
    assert text in str(caught.value)


@pytest.mark.parametrize("arguments", [
    dict(num_workers=2, num_hosts=1), dict(num_workers=0), dict(num_workers=None),
    dict(num_hosts=0), dict(num_hosts=2, num_workers_per_host=0),
    dict(num_hosts=2, num_workers_per_host=None), dict(num_workers=-3)])
def test_sizes_that_mean_nothing_fail_at_start(arguments):
    executor = RayExecutor(settings(), **arguments)
    with pytest.raises(ValueError):
        executor.start()
    executor.shutdown()


def test_parameters_and_mode():
    plain = settings()
    executor = RayExecutor(plain, num_workers=2, num_workers_per_host=None)
    assert isinstance(executor.params, StaticParams) and executor.settings is plain
    assert plain.elastic is False and executor.params.gpus_per_worker == 0
    assert issubclass(executor.params.adapter, Adapter)
    assert executor.params.adapter is StaticAdapter
    assert RayExecutor(plain, num_workers=1, use_gpu=True).params.gpus_per_worker == 1
    assert BaseParams(use_gpu=True, gpus_per_worker=0.5).gpus_per_worker == 0.5

    from horovod.ray.elastic_v2 import ElasticParams
    elastic = RayExecutor(plain, min_workers=1, max_workers=3)
    assert isinstance(elastic.params, ElasticParams) and plain.elastic is True


def test_any_object_serves_as_settings():
    class Settings:
        verbose, nics, key, placement_group_timeout_s, elastic = 1, None, None, 5, True

    mine = Settings()
    RayExecutor(mine, num_workers=1)
    assert mine.elastic is False


@pytest.mark.parametrize("old, new, value", [
    ("num_slots", "num_workers_per_host", 3), ("cpus_per_slot", "cpus_per_worker", 2),
    ("gpus_per_slot", "gpus_per_worker", 2)])
def test_old_names(old, new, value):
    with pytest.warns(DeprecationWarning, match=f"{old}.*{new}"):
        executor = RayExecutor(settings(), num_hosts=1, use_gpu=True, **{old: value})
    assert getattr(executor.params, new) == value


def test_unknown_names():
    with pytest.raises(TypeError, match="num_sloths"):
        RayExecutor(settings(), num_sloths=2)


def test_settings():
    mine = settings(timeout_s=7, placement_group_timeout_s=9, nics={"eth0"})
    assert (mine.timeout_s, mine.placement_group_timeout_s, mine.nics) == (7, 9, {"eth0"})
    assert (mine.verbose, mine.ssh_port, mine.elastic) == (1, None, False)
    assert MiniSettings().timeout_s == 300
    mine.discovery = "callers may add attributes"
    with pytest.warns(DeprecationWarning, match="verbose"):
        assert settings(verbose=2).verbose == 2


def test_an_identity_file_is_written_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "key.pem"
    settings(ssh_identity_file=str(path), ssh_str="first")
    settings(ssh_identity_file=str(path), ssh_str="second")
    assert path.read_text() == "first"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


# -- before start and after the end -----------------------------------------------------------

CALLS = [lambda e: e.run(print), lambda e: e.run(print, callbacks=[print]),
         lambda e: e.run_remote(print), lambda e: e.execute(print),
         lambda e: e.execute_single(print)]


@pytest.mark.parametrize("call", CALLS)
def test_nothing_works_before_start(call):
    executor = RayExecutor(settings(), num_workers=2)
    with pytest.raises(RuntimeError, match="not been started"):
        call(executor)
    executor.shutdown()
    executor.shutdown()


def test_a_failed_start_is_remembered():
    executor = RayExecutor(settings(), num_workers=0)
    with pytest.raises(ValueError):
        executor.start()
    with pytest.raises(RuntimeError, match="could not be started.*a job needs workers"):
        executor.run(print)


# -- elastic: names and arguments -------------------------------------------------------------

def test_settings_of_the_older_executor():
    older = ElasticRayExecutor.create_settings(min_num_proc=2, max_num_proc=4, verbose=2)
    assert (older.min_num_proc, older.max_num_proc, older.num_proc) == (2, 4, 2)
    assert (older.verbose, older.elastic, older.elastic_timeout) == (2, True, 600)
    assert older.start_timeout is not older.start_timeout
    old = ElasticRayExecutor(older, env_vars={"A": "1"})
    assert old.env_vars == {"A": "1"} and old.settings is older
    with pytest.raises(RuntimeError, match="not been started"):
        old.run(print)


def test_elastic_arguments():
    with pytest.raises(ValueError):
        RayExecutor(settings(), min_workers=1, cooldown_range=(0, 10))
    with pytest.raises(ValueError):
        RayExecutor(settings(), min_workers=1, cooldown_range=(1, 4000))
    RayExecutor(settings(), min_workers=1, cooldown_range=(1, 1))
    with pytest.warns(DeprecationWarning, match="min_np"):
        older = ElasticRayExecutor.create_settings(min_np=3, max_num_proc=5)
    assert older.min_num_proc == 3
    with pytest.raises(ValueError, match="gpus_per_slot"):
        ElasticRayExecutor(older, gpus_per_slot=1)
    with pytest.raises(ValueError, match="gpus_per_slot"):
        ElasticRayExecutor(older, use_gpu=True, gpus_per_slot=0)
    import pickle
    ElasticRayExecutor(older)
    assert older.discovery is not None
    assert pickle.loads(pickle.dumps(older)).discovery is None


# -- interfaces and variables -----------------------------------------------------------------

def test_variables_of_interfaces():
    assert utils.nics_to_env_var(["eth0", "eth1"]) == {
        "HOROVOD_GLOO_IFACE": "eth0", "NCCL_SOCKET_IFNAME": "eth0,eth1"}
    assert utils.nics_to_env_var([]) == {}


def fact(ip, interface):
    return {"node_ip": ip, "interface": interface}


def test_interfaces_follow_from_node_addresses():
    assert utils.choose_nics([fact("10.0.0.1", "eth0")] * 2, None) == ["lo"]
    assert utils.choose_nics([fact("10.0.0.1", "eth0"), fact("10.0.0.2", "eth0")],
                             None) == ["eth0"]
    assert utils.choose_nics([fact("10.0.0.1", "eth0"), fact("10.0.0.2", "ens5")], None) == []
    assert utils.choose_nics([fact("10.0.0.1", "eth0"), fact("10.0.0.2", None)], None) == []
    assert utils.choose_nics([fact("10.0.0.1", "eth0")], {"ib0"}) == ["ib0"]


def test_names_that_differ_are_set_on_each_node():
    adapter = StaticAdapter(settings(), num_workers=2)
    facts = [fact("10.0.0.1", "eth0"), fact("10.0.0.2", "ens5"), fact("10.0.0.3", None)]
    assert [adapter._nics(facts, f).get("HOROVOD_GLOO_IFACE") for f in facts] == [
        "eth0", "ens5", None]


def test_detection_on_this_machine():
    assert utils.detect_nics(settings(), ["localhost"]) == ["lo"]
    assert utils.detect_nics(settings(nics=["lo", "eth0"]), ["localhost"], []) == ["lo"]
    with pytest.raises(ValueError, match="nosuch"):
        utils.detect_nics(settings(nics=["nosuch"]), ["localhost"])
    assert utils.detect_nics(settings(nics=["ib0"]), ["localhost", "far.invalid"]) == ["ib0"]
    with pytest.raises(ValueError, match="1 node workers for 2 hosts"):
        utils.detect_nics(settings(), ["localhost", "far.invalid"], [object()])


def test_wishes_of_the_user_and_who_a_process_is():
    assert utils.user_variables({
        "HOROVOD_RANK": "1", "HOROVOD_KEY": "secret", "HOROVOD_FUSION_THRESHOLD": "1mb",
        "HOROVOD_GLOO_IFACE": "eth3", "PATH": "/bin"}) == {
        "HOROVOD_FUSION_THRESHOLD": "1mb", "HOROVOD_GLOO_IFACE": "eth3"}


def test_every_identity_of_the_core_is_known():
    """A row of config.def that says who a process is must not be handed on."""
    import pathlib
    import re
    rows = (pathlib.Path(__file__).parents[3] / "src/base/config.def").read_text()
    names = {"HOROVOD_" + name for name in
             re.findall(r'^CONFIG\(\w+, \w+, "(\w+)".*\bIDENTITY\b', rows, re.M)}
    assert len(names) > 10
    assert utils.user_variables({name: "x" for name in names}) == {}


def test_logging_without_a_call_warns_once():
    ray_logger.configure(None)
    with pytest.warns(UserWarning, match="no callbacks"):
        ray_logger.log({"a": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ray_logger.log({"a": 2})
