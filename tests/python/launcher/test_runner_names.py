"""The modules and names other packages import, and that they agree with the launcher."""
import argparse
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import pytest

import horovod
from horovod.runner import _HorovodArgs, launch
from horovod.runner.common.util import codec, config_parser, env, host_hash, safe_shell_exec, secret
from horovod.runner.common.util.hosts import (INVALID_SLOT_INFO, HostInfo, SlotInfo,
                                              get_host_assignments, parse_host_files, parse_hosts,
                                              parse_hosts_and_slots)
from horovod.runner.common.util.settings import BaseSettings, Settings
from horovod.runner.common.util.timeout import Timeout, TimeoutException
from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars, launch_gloo
from horovod.runner.js_run import generate_jsrun_rankfile, is_jsrun_installed
from horovod.runner.mpi_run import (is_intel_mpi, is_mpich, is_open_mpi, is_spectrum_mpi,
                                    mpi_available, mpi_run)
from hvdrun import HOROVODRUN, environment

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_arguments_are_plain_attributes():
    args = _HorovodArgs()
    assert args.num_proc == args.np == 1 and args.hosts is None and args.cycle_time_ms is None
    args.np = 3
    assert args.num_proc == 3


def test_parse_args_is_the_native_parser():
    args = launch.parse_args(["-np", "2", "--gloo", "--network-interfaces", "a,b", "--slots", "4",
                              "--no-autotune", "--cycle-time-ms", "3", "-p", "22", "python",
                              "x.py"])
    assert args.num_proc == 2 and args.use_gloo and args.nics == {"a", "b"} and args.slots == 4
    assert args.autotune is False and args.cycle_time_ms == 3 and args.ssh_port == 22
    assert args.command == ["python", "x.py"] and args.use_mpi is None and not args.verbose
    assert args.log_with_timestamp is None and args.hierarchical_allreduce is None
    with pytest.raises(SystemExit) as error:
        launch.parse_args(["-np", "x"])
    assert error.value.code == 2
    with pytest.raises(SystemExit) as error:
        launch.parse_args(["true"])
    assert error.value.code == 2


def test_the_module_is_the_program():
    done = subprocess.run([sys.executable, "-m", "horovod.runner.launch", "-np", "2", "sh", "-c",
                           "echo x; exit $HOROVOD_RANK"], env=environment(), capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 1 and "[0]<stdout>:x" in done.stdout


def test_run_with_a_command():
    args = _HorovodArgs()
    args.num_proc, args.command = 2, ["true"]
    assert launch._run(args) is None
    args.command = ["sh", "-c", "exit 4"]
    with pytest.raises(RuntimeError):
        launch._run(args)


@pytest.mark.parametrize("flags, mpi, gloo, lsf, result", [
    ("gloo", True, True, False, "gloo"), ("gloo", True, False, False, "Gloo support has not been"),
    ("mpi", True, True, False, "mpi"), ("mpi", False, True, False, "MPI support has not been"),
    ("jsrun", False, True, True, "MPI support has not been"),
    ("jsrun", True, True, False, "Horovod did not detect an LSF job"),
    ("jsrun", True, True, True, "js"), ("", True, True, False, "mpi"), ("", True, True, True, "js"),
    ("", False, True, False, "gloo"), ("", False, False, False, "Neither MPI nor Gloo"),
])
def test_choice_of_the_controller(monkeypatch, flags, mpi, gloo, lsf, result):
    called = []
    monkeypatch.setattr(launch, "mpi_built", lambda verbose=False: mpi)
    monkeypatch.setattr(launch, "gloo_built", lambda verbose=False: gloo)
    monkeypatch.setattr("horovod.runner.js_run.is_jsrun_installed", lambda: True)
    monkeypatch.delenv("LSB_JOBID", raising=False)
    if lsf:
        monkeypatch.setenv("LSB_JOBID", "1")

    def choose():
        launch.run_controller(flags == "gloo", lambda: called.append("gloo"), flags == "mpi",
                              lambda: called.append("mpi"), flags == "jsrun",
                              lambda: called.append("js"), 2)
    if result in ("gloo", "mpi", "js"):
        choose()
        assert called == [result]
    else:
        with pytest.raises(ValueError, match=f"^{result}"):
            choose()


def test_is_gloo_used():
    assert launch.is_gloo_used(True, False, False) and launch.is_gloo_used(None, None, None)
    assert not launch.is_gloo_used(None, True, None)


def places(slots):
    return [(s.hostname, s.rank, s.local_rank, s.local_size, s.cross_rank, s.cross_size)
            for s in slots]


def test_host_assignments():
    assert places(get_host_assignments(parse_hosts("a:3,b:1,c:2"), 6)) == [
        ("a", 0, 0, 3, 0, 3), ("a", 1, 1, 3, 0, 2), ("a", 2, 2, 3, 0, 1), ("b", 3, 0, 1, 1, 3),
        ("c", 4, 0, 2, 2, 3), ("c", 5, 1, 2, 1, 2)]
    assert places(get_host_assignments(parse_hosts("w0:2,w1:2"), 1, 2)) == [
        ("w0", 0, 0, 2, 0, 1), ("w0", 1, 1, 2, 0, 1)]
    with pytest.raises(ValueError, match=r"Requested more processes \(3\) than there are "
                                         r"available slots \(2\)"):
        get_host_assignments([HostInfo("a", 2)], 3)
    assert get_host_assignments([HostInfo("a", 1)], 1)[0].to_response_string() == "0,1,0,1,0,1"
    assert INVALID_SLOT_INFO.to_response_string() == "-1,-1,-1,-1,-1,-1"


def test_hosts(tmp_path):
    assert parse_hosts("a:2, [::1]:3") == [HostInfo("a", 2), HostInfo("::1", 3)]
    assert parse_hosts_and_slots("a:1,b:2,a:1") == (["a", "b"], {"a": 2, "b": 2})
    with pytest.raises(Exception, match="Invalid host input"):
        parse_hosts("localhost")
    (tmp_path / "h").write_text("# x\n\na slots=2\nb slots = 3 max_slots=4\nc\n")
    assert parse_host_files(str(tmp_path / "h")) == "a:2,b:3,c:1"


def test_python_and_native_assign_alike():
    done = subprocess.run([HOROVODRUN, "-np", "4", "-H", "localhost:1,127.0.0.1:2,127.0.0.2:3",
                           "sh", "-c", "echo $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK "
                           "$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK $HOROVOD_CROSS_SIZE"],
                          env=environment(), capture_output=True, text=True, timeout=60)
    native = [line.split(":", 1)[1].split() for line in sorted(done.stdout.splitlines())]
    slots = get_host_assignments(parse_hosts("localhost:1,127.0.0.1:2,127.0.0.2:3"), 4, 4)
    assert native == [[s.hostname, *map(str, (s.local_rank, s.local_size, s.cross_rank,
                                              s.cross_size))] for s in slots]


def test_config_parser_knows_what_the_launcher_knows():
    text = (ROOT / "src/base/config.def").read_text()
    rows = [re.findall(r'"((?:[^"\\]|\\.)*)"', line) for line in text.splitlines()
            if line.startswith("CONFIG(")]
    native = {r[-2]: "HOROVOD_" + r[0] for r in rows if r[-2]}
    keys = {f"{section}.{key}" for section, table in config_parser._KEYS.items() for key in table}
    assert set(native) == keys | {"stall_check.enabled"}
    for variable in native.values():
        assert getattr(config_parser, variable) == variable


def test_config_file_into_arguments():
    args = _HorovodArgs()
    args.cycle_time_ms = 5
    config_parser.set_args_from_config(args, {
        "controller": "MPI", "params": {"cycle_time_ms": 20, "fusion_threshold_mb": 32},
        "stall_check": {"enabled": False}, "logging": {"level": "INFO", "with_timestamp": True}},
        {"cycle_time_ms"})
    assert args.use_mpi and args.cycle_time_ms == 5 and args.fusion_threshold_mb == 32
    assert args.no_stall_check is True and args.log_level == "INFO"
    variables = config_parser.set_env_from_args({}, args)
    assert variables == {"HOROVOD_CYCLE_TIME": "5.0", "HOROVOD_FUSION_THRESHOLD": "33554432",
                         "HOROVOD_STALL_CHECK_DISABLE": "1", "HOROVOD_LOG_LEVEL": "INFO",
                         "HOROVOD_LOG_HIDE_TIME": "0"}
    args.fusion_threshold_mb = -1
    with pytest.raises(ValueError, match="fusion_threshold_mb=-1 must be >= 0"):
        config_parser.validate_config_args(args)
    assert config_parser.set_env_from_args({}, argparse.Namespace()) == {}
    with pytest.raises(ValueError):
        config_parser.set_args_from_config(_HorovodArgs(), {"controller": "x"}, set())


def test_settings():
    settings = Settings(hosts="a:1", num_proc=1, verbose=2)
    assert isinstance(settings, BaseSettings) and settings.hosts == "a:1"
    assert settings.elastic is False and settings.output_filename is None


def test_rank_and_size_of_the_environment(monkeypatch):
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                 "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "1")
    with pytest.raises(RuntimeError):
        env.get_env_rank_and_size()
    monkeypatch.setenv("PMI_SIZE", "2")
    assert env.get_env_rank_and_size() == (1, 2)
    assert env.is_exportable("PATH") and not env.is_exportable("BASH_FUNC_x%%")
    assert not env.is_exportable("MY_CUDA_VISIBLE_DEVICES") and not env.is_kubeflow_mpi()


def test_timeout():
    limit = Timeout(0.0, "Timed out waiting for {activity}.")
    assert limit.timed_out() and limit.remaining() == 0
    with pytest.raises(TimeoutException, match=r"for workers\. Timeout after 0.0 seconds\."):
        limit.check_time_out_for("workers")
    Timeout(60, "x").check_time_out_for("y")


def test_small_things():
    assert len(secret.make_secret_key()) == 32
    assert codec.loads_base64(codec.dumps_base64({"a": (1, None)})) == {"a": (1, None)}
    assert host_hash.host_hash() == host_hash.host_hash() != host_hash.host_hash("salt")
    assert re.fullmatch(r"[^-.]+(-[^-.]+)*-[0-9a-f]{32}", host_hash.host_hash())


def test_safe_shell_exec(capfd):
    assert safe_shell_exec.GRACEFUL_TERMINATION_TIME_S == 5
    assert safe_shell_exec.execute("echo $X; exit 3", env=dict(os.environ, X="y"), index=2) == 3
    assert "[2]<stdout>:y" in capfd.readouterr().out
    assert safe_shell_exec.execute("kill -9 $$") == 137
    event = threading.Event()
    threading.Timer(0.3, event.set).start()
    began = time.monotonic()
    assert safe_shell_exec.execute("sleep 300", events=[event]) == 143
    assert time.monotonic() - began < 10


def test_slot_and_run_variables():
    slot = SlotInfo("h", 1, 0, 1, 2, 1, 2)
    assert create_slot_env_vars(slot)["HOROVOD_CROSS_RANK"] == "1"
    variables = create_run_env_vars("10.0.0.1", ["eth0", "eth1"], 99, elastic=True)
    assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "99"
    assert variables["HOROVOD_GLOO_IFACE"] == "eth0" and variables["HOROVOD_ELASTIC"] == "1"
    assert variables["NCCL_SOCKET_IFNAME"] == "eth0,eth1"


def test_launch_gloo_starts_workers_its_callers_way(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def execute(command, slot, events):
        started.append(slot.rank)
        assert os.listdir(tmp_path) == []           # the key is in no file
        code = safe_shell_exec.execute(command, env=environment(), index=slot.rank, events=events)
        return code, time.time()
    settings = Settings(hosts="localhost:2", num_proc=2)
    script = ("from horovod import _core; _core.init(None, False); "
              "print(_core.rank(), _core.size()); _core.shutdown()")
    launch_gloo(f"{sys.executable} -c '{script}'", execute, settings, ["lo"], {}, "127.0.0.1")
    assert sorted(started) == [0, 1]
    with pytest.raises(RuntimeError, match="Process name: 1\nExit code: 5"):
        launch_gloo("sh -c '[ $HOROVOD_RANK = 1 ] && exit 5; sleep 60'", execute, settings, [],
                    {}, "127.0.0.1")


def test_mpi_names():
    text = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout
    assert mpi_available() and is_open_mpi() == ("Open MPI" in text)
    assert not is_spectrum_mpi() and not is_intel_mpi() and is_mpich() == ("HYDRA" in text)
    with pytest.raises(RuntimeError, match="^mpirun failed with exit code 3$"):
        mpi_run(Settings(num_proc=1, verbose=0), None, environment(), ["sh", "-c", "exit 3"])


def test_jsrun_rankfile(tmp_path):
    assert not is_jsrun_installed()
    path = generate_jsrun_rankfile(Settings(hosts="a:1,b:1", num_proc=2), str(tmp_path / "r"))
    lines = open(path).read().splitlines()
    assert lines[:2] == ["overlapping_rs: allow", "cpu_index_using: logical"]
    assert lines[3].startswith("rank: 0: { hostname: a; cpu: {0-")


def test_rendezvous_server():
    from horovod.runner.http.http_server import KVStoreServer, RendezvousServer
    server = RendezvousServer()
    assert 0 < server.start() < 65536
    server.init(get_host_assignments([HostInfo("localhost", 2)], 2))
    server.stop()
    server.stop()
    store = KVStoreServer()
    store.put("s", "k", b"v")
    assert store.get("s", "k") == b"v" and store.get("s", "x") is None


def test_signature_of_run():
    names = list(inspect.signature(horovod.run).parameters)
    assert names == ("func args kwargs num_proc min_num_proc max_num_proc slots reset_limit "
                     "cooldown_range hosts hostfile host_discovery_script start_timeout ssh_port "
                     "ssh_identity_file disable_cache output_filename verbose use_gloo use_mpi "
                     "mpi_args network_interface network_interfaces executable np min_np "
                     "max_np").split()


def test_print_args_is_json():
    text = subprocess.run([HOROVODRUN, "--print-args", "-np", "1", "a\nb"], capture_output=True,
                          timeout=30).stdout
    assert json.loads(text)["command"] == ["a\nb"]
