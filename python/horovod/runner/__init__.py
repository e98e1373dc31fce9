"""Starting jobs from Python: ``horovod.run``.

Everything is done by the native launcher (``horovodrun``); this turns arguments into its
options and brings function and results to and fro.
"""
import os
import shutil
import sys
import tempfile
import warnings
from typing import Any, Callable, Optional, Sequence

from horovod.runner import _message, _native
from horovod.runner._outcome import function_message, values

_FIELDS = """
    min_num_proc max_num_proc slots reset_limit cooldown_range check_build ssh_port
    ssh_identity_file disable_cache start_timeout output_filename verbose command run_func
    config_file nics hosts hostfile host_discovery_script use_gloo use_mpi use_jsrun mpi_args
    tcp_flag binding_args executable elastic_timeout prefix_output_with_timestamp
    fusion_threshold_mb cycle_time_ms cache_capacity hierarchical_allreduce
    hierarchical_allgather torus_allreduce autotune autotune_log_file autotune_warmup_samples
    autotune_steps_per_sample autotune_bayes_opt_max_samples
    autotune_gaussian_process_noise timeline_filename timeline_mark_cycles no_stall_check
    stall_check_warning_time_seconds stall_check_shutdown_time_seconds mpi_threads_disable
    num_nccl_streams thread_affinity gloo_timeout_seconds log_level log_with_timestamp
""".split()


class _HorovodArgs:
    """One attribute per option of horovodrun; None: not given."""

    def __init__(self) -> None:
        self.num_proc = 1
        for name in _FIELDS:
            setattr(self, name, None)

    # Names of the options before they were spelled out.
    np = property(lambda self: self.num_proc, lambda self, v: setattr(self, "num_proc", v))
    min_np = property(lambda self: self.min_num_proc,
                      lambda self, v: setattr(self, "min_num_proc", v))
    max_np = property(lambda self: self.max_num_proc,
                      lambda self, v: setattr(self, "max_num_proc", v))


_VALUES = {
    "num_proc": "--num-proc", "min_num_proc": "--min-num-proc",
    "max_num_proc": "--max-num-proc", "slots": "--slots-per-host",
    "reset_limit": "--reset-limit", "hosts": "--hosts", "hostfile": "--hostfile",
    "host_discovery_script": "--host-discovery-script", "start_timeout": "--start-timeout",
    "ssh_port": "--ssh-port", "ssh_identity_file": "--ssh-identity-file",
    "output_filename": "--output-filename", "mpi_args": "--mpi-args",
    "binding_args": "--binding-args", "config_file": "--config-file",
    "elastic_timeout": "--elastic-timeout"}
_FLAGS = {"verbose": "--verbose", "use_gloo": "--gloo", "use_mpi": "--mpi",
          "use_jsrun": "--jsrun", "disable_cache": "--disable-cache", "tcp_flag": "--tcp",
          "prefix_output_with_timestamp": "--prefix-output-with-timestamp"}
_SWITCHES = ("hierarchical_allreduce", "hierarchical_allgather", "torus_allreduce", "autotune",
             "timeline_mark_cycles", "mpi_threads_disable")
_KNOBS = ("fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "autotune_log_file",
          "autotune_warmup_samples", "autotune_steps_per_sample",
          "autotune_bayes_opt_max_samples", "autotune_gaussian_process_noise",
          "timeline_filename", "stall_check_warning_time_seconds",
          "stall_check_shutdown_time_seconds", "num_nccl_streams", "thread_affinity",
          "gloo_timeout_seconds", "log_level")


def _options(args: Any) -> list[str]:
    """The options of horovodrun that say what args says."""
    words = []
    for name, option in _VALUES.items():
        value = getattr(args, name, None)
        if value is not None:
            words.append(f"{option}={value}")
    words += [option for name, option in _FLAGS.items() if getattr(args, name, None)]
    for name in _SWITCHES:
        value = getattr(args, name, None)
        if value is not None:
            words.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
    for name in _KNOBS:
        value = getattr(args, name, None)
        if value is not None:
            words.append(f"--{name.replace('_', '-')}={value}")
    if getattr(args, "no_stall_check", None) is not None:
        words.append("--no-stall-check" if args.no_stall_check else "--stall-check")
    if getattr(args, "log_with_timestamp", None) is not None:
        words.append("--log-with-timestamp" if args.log_with_timestamp
                     else "--log-without-timestamp")
    words += [f"--network-interface={nic}" for nic in getattr(args, "nics", None) or ()]
    if getattr(args, "min_num_proc", None) or getattr(args, "host_discovery_script", None):
        from horovod.runner.elastic import driver
        words = driver.timing_words() + words           # what was given comes last, and wins
    cooldown = getattr(args, "cooldown_range", None)
    if cooldown:
        words += ["--blacklist-cooldown-range", *map(str, cooldown)]
    return words


def _failure(outcome: _native.Outcome) -> RuntimeError:
    """The exception that tells what the launcher has found."""
    return outcome.failure() or RuntimeError(outcome.reason())


def _run_with_files(args: Any, command: Sequence[str]) -> list[Any]:
    """mpirun passes no descriptors on: function and results are files in a directory only
    this user can enter (on several hosts, of a file system they share)."""
    folder = tempfile.mkdtemp(prefix="horovod-run-")
    try:
        fd = os.open(os.path.join(folder, "function"), os.O_WRONLY | os.O_CREAT | os.O_EXCL,
                     0o600)
        _message.write_all(fd, function_message(*args.run_func))
        outcome = _native.execute(_options(args), command,
                                  env=dict(os.environ, HOROVOD_RUN_DIR=folder))
        if outcome.code != 0:
            raise RuntimeError(f"mpirun failed with exit code {outcome.code}")
        return values([_message.read_all(os.open(os.path.join(folder, f"result.{rank}"),
                                                 os.O_RDONLY | os.O_NOFOLLOW))
                       for rank in range(args.num_proc)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run_function(args: Any) -> list[Any]:
    command = [args.executable or sys.executable, "-m", "horovod.runner.run_task"]
    if args.use_mpi or args.use_jsrun:
        return _run_with_files(args, command)
    outcome = _native.execute(_options(args), command, payload=function_message(*args.run_func))
    if outcome.code != 0:
        raise _failure(outcome)
    elastic = args.min_num_proc is not None or args.host_discovery_script is not None
    ranks = sorted(outcome.results) if elastic else range(args.num_proc)
    return values([bytes(outcome.results.get(rank, b"")) for rank in ranks])


def _deprecated(old: str, new: str, value: Any) -> Any:
    warnings.warn(f"{old} is deprecated, use {new}", DeprecationWarning, stacklevel=3)
    return value


def run(
        func: Callable,
        args: Sequence = (),
        kwargs: Optional[dict] = None,
        num_proc: int = 1,
        min_num_proc: Optional[int] = None,
        max_num_proc: Optional[int] = None,
        slots: Optional[int] = None,
        reset_limit: Optional[int] = None,
        cooldown_range: Optional[Sequence[int]] = None,
        hosts: Optional[str] = None,
        hostfile: Optional[str] = None,
        host_discovery_script: Optional[str] = None,
        start_timeout: Optional[int] = None,
        ssh_port: Optional[int] = None,
        ssh_identity_file: Optional[str] = None,
        disable_cache: Optional[bool] = None,
        output_filename: Optional[str] = None,
        verbose: Optional[int] = None,
        use_gloo: Optional[bool] = None,
        use_mpi: Optional[bool] = None,
        mpi_args: Optional[str] = None,
        network_interface: Optional[str] = None,
        network_interfaces: Optional[Sequence[str]] = None,
        executable: Optional[str] = None,
        np: Optional[int] = None,
        min_np: Optional[int] = None,
        max_np: Optional[int] = None) -> list[Any]:
    """Runs ``func(*args, **kwargs)`` in ``num_proc`` processes.

    Returns the list of what it returned, by rank.  When a process fails, the others are
    ended and RuntimeError tells the rank and the traceback of its exception.
    Works in notebooks and in any thread; no signal handler is changed.
    """
    if np is not None:
        num_proc = _deprecated("np", "num_proc", np)
    if min_np is not None:
        min_num_proc = _deprecated("min_np", "min_num_proc", min_np)
    if max_np is not None:
        max_num_proc = _deprecated("max_np", "max_num_proc", max_np)
    if network_interface is not None:
        network_interfaces = _deprecated("network_interface", "network_interfaces",
                                         network_interface).split(",")
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    job = _HorovodArgs()
    for name, value in dict(
            num_proc=num_proc, min_num_proc=min_num_proc, max_num_proc=max_num_proc,
            slots=slots, reset_limit=reset_limit, cooldown_range=cooldown_range, hosts=hosts,
            hostfile=hostfile, host_discovery_script=host_discovery_script,
            start_timeout=start_timeout, ssh_port=ssh_port,
            ssh_identity_file=ssh_identity_file, disable_cache=disable_cache,
            output_filename=output_filename, verbose=verbose, use_gloo=use_gloo,
            use_mpi=use_mpi, mpi_args=mpi_args, nics=network_interfaces,
            executable=executable, run_func=(func, tuple(args), kwargs or {})).items():
        setattr(job, name, value)
    return _run_function(job)
