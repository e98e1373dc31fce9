"""Jobs under our own controller, for code that starts the processes itself (Ray, Spark)."""
import os
import shlex
import tempfile
import threading
import time
from typing import Any, Callable, Optional, Sequence

from horovod.runner import _failure, _native
from horovod.runner.common.util.hosts import SlotInfo, get_host_assignments, parse_hosts


def create_slot_env_vars(slot_info: SlotInfo) -> dict[str, str]:
    """The variables that tell a worker who it is."""
    return {"HOROVOD_HOSTNAME": str(slot_info.hostname), "HOROVOD_RANK": str(slot_info.rank),
            "HOROVOD_SIZE": str(slot_info.size),
            "HOROVOD_LOCAL_RANK": str(slot_info.local_rank),
            "HOROVOD_LOCAL_SIZE": str(slot_info.local_size),
            "HOROVOD_CROSS_RANK": str(slot_info.cross_rank),
            "HOROVOD_CROSS_SIZE": str(slot_info.cross_size)}


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
    if settings.hosts:
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


def launch_gloo(command: str, exec_command: Callable, settings: Any, nics: Sequence[str],
                env: dict, server_ip: str) -> None:
    """Starts the workers with ``exec_command(command, slot_info, events) -> (code, time)``,
    one thread each, and serves their rendezvous.  The key is a file only this user can
    read, so that exec_command works on this host and where that path is shared."""
    from horovod import _core
    slots = get_host_assignments(parse_hosts(settings.hosts), settings.num_proc,
                                 settings.num_proc)
    key, failed = _core.generate_key(), threading.Event()
    results: dict[int, tuple[int, float]] = {}
    server = _core.Server(key, "", [server_ip], 0, len(slots), 30.0)
    run_env = create_run_env_vars(server_ip, nics, server.port)

    def run(slot: SlotInfo, key_path: str) -> None:
        words = {**run_env, **create_slot_env_vars(slot), "HOROVOD_KEY_FILE": key_path,
                 "PYTHONUNBUFFERED": "1"}
        text = " ".join(f"{k}={shlex.quote(v)}" for k, v in words.items())
        results[slot.rank] = exec_command(f"{text} {command}", slot, [failed])
        if results[slot.rank][0] != 0:
            failed.set()

    try:
        with tempfile.TemporaryDirectory(prefix="horovod-key-") as folder:
            path = os.path.join(folder, "key")
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            os.write(fd, key.hex().encode())
            os.close(fd)
            threads = [threading.Thread(target=run, args=(slot, path)) for slot in slots]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        server.close()
    _raise_first(results)


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
