"""Jobs under our own controller, for code that starts the processes itself (Ray, Spark).

Imported by: horovod.runner, horovod.spark; programs written for Horovod 0.28.
"""
import contextlib
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
from typing import Any, Callable, Iterator, Optional, Sequence

from horovod.runner import _failure, _key_desk, _native
from horovod.runner._outcome import function_message, values
from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts
from horovod.runner.elastic.discovery import launcher_words
from horovod.runner.elastic.driver import ElasticDriver, timing_words


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """The variables that tell a worker who it is."""
    return {"HOROVOD_HOSTNAME": str(slot_info.hostname), "HOROVOD_RANK": str(slot_info.rank),
            "HOROVOD_SIZE": str(slot_info.size),
            "HOROVOD_LOCAL_RANK": str(slot_info.local_rank),
            "HOROVOD_LOCAL_SIZE": str(slot_info.local_size),
            "HOROVOD_CROSS_RANK": str(slot_info.cross_rank),
            "HOROVOD_CROSS_SIZE": str(slot_info.cross_size), **(slot_info.env or {})}


def create_run_env_vars(server_ip: str, nics: Sequence[str], port: int,
                        elastic: bool = False) -> dict[str, str]:
    """The variables that tell a worker where the others are."""
    env = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": server_ip,
           "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port), "HOROVOD_CONTROLLER": "gloo",
           "HOROVOD_CPU_OPERATIONS": "gloo"}
    if nics:
        env["HOROVOD_GLOO_IFACE"] = list(nics)[0]
        env["NCCL_SOCKET_IFNAME"] = ",".join(nics)
    if elastic:
        env["HOROVOD_ELASTIC"] = "1"
    return env


def _settings_options(settings: Any, nics: Optional[Sequence[str]]) -> list[str]:
    words = [f"--num-proc={settings.num_proc}"]
    if getattr(settings, "hosts", None):
        words.append(f"--hosts={settings.hosts}")
    words += [f"--network-interface={nic}" for nic in nics or ()]
    for name, option in (("ssh_port", "--ssh-port"),
                         ("ssh_identity_file", "--ssh-identity-file"),
                         ("output_filename", "--output-filename")):
        if getattr(settings, name, None):
            words.append(f"{option}={getattr(settings, name)}")
    if settings.verbose and settings.verbose >= 2:
        words.append("--verbose")
    if settings.prefix_output_with_timestamp:
        words.append("--prefix-output-with-timestamp")
    return words


def gloo_run(settings: Any, nics: Optional[Sequence[str]], env: dict, server_ip: str,
             command: Any) -> None:
    """Runs a command on the hosts of settings.  RuntimeError when it fails."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    outcome = _native.execute(_settings_options(settings, nics), words, env=env)
    if outcome.code != 0:
        raise _failure(outcome)


def _is_here(host: str) -> bool:
    return host in ("localhost", "127.0.0.1", "::1", socket.gethostname())


@contextlib.contextmanager
def _key_for(key: bytes, is_local: bool) -> Iterator[dict[str, str]]:
    """The variable by which workers find the key: no descriptor reaches them."""
    if is_local:
        with _key_desk.served(key) as name:
            yield {"HOROVOD_KEY_SOCKET": name}
        return
    with tempfile.TemporaryDirectory(prefix="horovod-key-") as folder:
        path = os.path.join(folder, "key")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key.hex().encode())
        yield {"HOROVOD_KEY_FILE": path}


def launch_gloo(command: str, exec_command: Callable, settings: Any, nics: Sequence[str],
                env: dict, server_ip: str) -> None:
    """Starts the workers with ``exec_command(command, slot_info, events) -> (code, time)``,
    one thread each, and serves their rendezvous.  Workers ask this process for the key; if
    some are on other hosts, it is in a file that only this user can read, and exec_command
    works where that path is shared."""
    from horovod import _core
    slots = get_host_assignments(parse_hosts(settings.hosts), settings.num_proc,
                                 settings.num_proc)
    key, failed = _core.generate_key(), threading.Event()
    results: dict[int, tuple[int, float]] = {}
    server = _core.Server(key, "", [server_ip], 0, len(slots), 30.0)
    run_env = create_run_env_vars(server_ip, nics, server.port)

    def run(slot: SlotInfo, key_words: dict[str, str]) -> None:
        words = {**run_env, **create_slot_env_vars(slot), **key_words,
                 "PYTHONUNBUFFERED": "1"}
        text = " ".join(f"{k}={shlex.quote(v)}" for k, v in words.items())
        results[slot.rank] = exec_command(f"{text} {command}", slot, [failed])
        if results[slot.rank][0] != 0:
            failed.set()

    try:
        with _key_for(key, all(_is_here(slot.hostname) for slot in slots)) as words:
            threads = [threading.Thread(target=run, args=(slot, words)) for slot in slots]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        server.close()
    _raise_first(results)


def gloo_run_elastic(settings: Any, env: dict, command_or_func: Any,
                     executable: Optional[str] = None) -> Optional[list]:
    """Runs a command, or a function with its results by rank, as an elastic job of
    ``settings`` (ElasticSettings).  RuntimeError when it fails."""
    with launcher_words(settings.discovery) as discovery:
        options = _settings_options(settings, settings.nics) + _elastic_options(settings) + \
            discovery
        if callable(command_or_func):
            outcome = _native.execute(
                options, [executable or sys.executable, "-m", "horovod.runner.run_task"],
                payload=function_message(command_or_func, (), {}), env=env)
        else:
            outcome = _native.execute(options, shlex.split(command_or_func)
                                      if isinstance(command_or_func, str) else command_or_func,
                                      env=env)
    if outcome.code != 0:
        raise _failure(outcome)
    return values([bytes(outcome.results[rank]) for rank in sorted(outcome.results)]) \
        if callable(command_or_func) else None


def _elastic_options(settings: Any) -> list[str]:
    words = [f"--min-num-proc={settings.min_num_proc or settings.num_proc}", *timing_words()]
    for name, option in (("max_num_proc", "--max-num-proc"), ("reset_limit", "--reset-limit"),
                         ("elastic_timeout", "--elastic-timeout")):
        if getattr(settings, name, None) is not None:
            words.append(f"{option}={getattr(settings, name)}")
    if settings.cooldown_range:
        words += ["--blacklist-cooldown-range", *map(str, settings.cooldown_range)]
    return words


def launch_gloo_elastic(command_or_func: Any, exec_command: Callable, settings: Any, env: dict,
                        get_common_interfaces: Optional[Callable] = None,
                        rendezvous: Any = None, executable: Optional[str] = None) -> None:
    """Runs a command as an elastic job whose workers ``exec_command(command, slot_info, events)
    -> (code, time)`` starts, one thread each.  RuntimeError when the job fails."""
    if callable(command_or_func):
        raise ValueError("launch_gloo_elastic starts commands; for functions there are "
                         "horovod.run and gloo_run_elastic")
    driver = ElasticDriver(
        rendezvous, settings.discovery, settings.min_num_proc or settings.num_proc,
        settings.max_num_proc, settings.elastic_timeout, settings.reset_limit,
        settings.cooldown_range, settings.verbose or 0)

    def create(slot: SlotInfo, events: list) -> tuple:
        words = {**create_run_env_vars("127.0.0.1", (), 0, elastic=True),
                 **create_slot_env_vars(slot), "PYTHONUNBUFFERED": "1"}
        text = " ".join(f"{k}={shlex.quote(v)}" for k, v in words.items())
        return exec_command(f"{text} {command_or_func}", slot, events)

    driver.wait_for_available_slots(settings.num_proc, _get_min_start_hosts(settings))
    driver.start(settings.num_proc, create)
    results = driver.get_results()
    if results.error_message is not None:
        raise RuntimeError(results.error_message)


def _raise_first(results: dict[int, tuple[int, float]]) -> None:
    bad = [(when or time.time(), rank, code) for rank, (code, when) in results.items() if code]
    if bad:
        _, rank, code = min(bad)
        raise RuntimeError("Horovod detected that one or more processes exited with non-zero "
                           "status, thus causing the job to be terminated. The first process "
                           f"to do so was:\nProcess name: {rank}\nExit code: {code}\n")


def _get_min_start_hosts(settings: Any) -> int:
    """Hosts an elastic job waits for: one is enough, there is no probe between hosts."""
    return 1
