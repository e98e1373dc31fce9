"""Tuning knobs: option, key of the config file, variable.  The native launcher has its own
copy of this table in src/base/config.def; tests compare the two.

Imported by: horovod.runner; programs written for Horovod 0.28.
"""
from typing import Any, Optional

HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
HOROVOD_CYCLE_TIME = "HOROVOD_CYCLE_TIME"
HOROVOD_CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
HOROVOD_HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
HOROVOD_HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER"
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
HOROVOD_AUTOTUNE = "HOROVOD_AUTOTUNE"
HOROVOD_AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"
HOROVOD_AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"
HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"
HOROVOD_TIMELINE = "HOROVOD_TIMELINE"
HOROVOD_TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
HOROVOD_STALL_CHECK_TIME_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS"
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
HOROVOD_MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE"
HOROVOD_NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS"
HOROVOD_THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY"
HOROVOD_GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS"
HOROVOD_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
HOROVOD_LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"
NCCL_IB_DISABLE = "NCCL_IB_DISABLE"
LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]

# section -> key -> attribute of the arguments
_KEYS = {
    "params": {k: k for k in ("fusion_threshold_mb", "cycle_time_ms", "cache_capacity",
                              "hierarchical_allreduce", "hierarchical_allgather",
                              "torus_allreduce")},
    "autotune": {"enabled": "autotune", "log_file": "autotune_log_file",
                 **{k: f"autotune_{k}" for k in ("warmup_samples", "steps_per_sample",
                                                 "bayes_opt_max_samples",
                                                 "gaussian_process_noise")}},
    "timeline": {"filename": "timeline_filename", "mark_cycles": "timeline_mark_cycles"},
    "stall_check": {"warning_time_seconds": "stall_check_warning_time_seconds",
                    "shutdown_time_seconds": "stall_check_shutdown_time_seconds"},
    "library_options": {k: k for k in ("mpi_threads_disable", "num_nccl_streams",
                                       "thread_affinity", "gloo_timeout_seconds")},
    "logging": {"level": "log_level", "with_timestamp": "log_with_timestamp"}}

# attribute -> variable, for plain numbers and texts
_NUMBERS = {
    "fusion_threshold_mb": HOROVOD_FUSION_THRESHOLD, "cycle_time_ms": HOROVOD_CYCLE_TIME,
    "cache_capacity": HOROVOD_CACHE_CAPACITY,
    "stall_check_warning_time_seconds": HOROVOD_STALL_CHECK_TIME_SECONDS,
    "stall_check_shutdown_time_seconds": HOROVOD_STALL_SHUTDOWN_TIME_SECONDS,
    "num_nccl_streams": HOROVOD_NUM_NCCL_STREAMS, "thread_affinity": HOROVOD_THREAD_AFFINITY,
    "gloo_timeout_seconds": HOROVOD_GLOO_TIMEOUT_SECONDS}
_AUTOTUNE = {
    "autotune_log_file": HOROVOD_AUTOTUNE_LOG,
    "autotune_warmup_samples": HOROVOD_AUTOTUNE_WARMUP_SAMPLES,
    "autotune_steps_per_sample": HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE,
    "autotune_bayes_opt_max_samples": HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES,
    "autotune_gaussian_process_noise": HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE}
_SWITCHES = {"hierarchical_allreduce": HOROVOD_HIERARCHICAL_ALLREDUCE,
             "hierarchical_allgather": HOROVOD_HIERARCHICAL_ALLGATHER,
             "torus_allreduce": HOROVOD_TORUS_ALLREDUCE,
             "mpi_threads_disable": HOROVOD_MPI_THREADS_DISABLE}


def set_args_from_config(args: Any, config: dict, override_args: Any) -> None:
    """Fills what is None in args from a config file; attributes in override_args, and
    those that have a value, were given on the command line and stay."""
    def put(name: str, value: Any) -> None:
        if name not in override_args and getattr(args, name, None) is None:
            setattr(args, name, value)

    controller = config.get("controller")
    if controller is not None and not (getattr(args, "use_gloo", None) or
                                       getattr(args, "use_mpi", None)):
        if str(controller).lower() not in ("gloo", "mpi"):
            raise ValueError(f"No such controller supported: {controller}")
        setattr(args, "use_" + str(controller).lower(), True)
    for section, keys in _KEYS.items():
        values = config.get(section) or {}
        for key, name in keys.items():
            if values.get(key) is not None:
                put(name, values[key])
    if config.get("autotune"):
        put("autotune", False)
    if config.get("stall_check"):
        put("no_stall_check", not config["stall_check"].get("enabled", True))


def _check(args: Any, name: str, low: float = 0, high: Optional[float] = None) -> None:
    value = getattr(args, name, None)
    if value is None:
        return
    if high is not None and not low <= value <= high:
        raise ValueError(f"{name}={value} must be in range [{low}, {high}]")
    if value < low:
        raise ValueError(f"{name}={value} must be >= {low}")


def validate_config_args(args: Any) -> None:
    """ValueError for numbers out of their range."""
    for name in _NUMBERS:
        _check(args, name)
    for name in _AUTOTUNE:
        if name == "autotune_gaussian_process_noise":
            _check(args, name, 0, 1)
        elif name != "autotune_log_file":
            _check(args, name)


def set_env_from_args(env: dict, args: Any) -> dict:
    """Sets the variables behind the options that were given."""
    def put(variable: str, value: Any) -> None:
        if value is not None:
            env[variable] = str(int(value) if isinstance(value, bool) else value)

    def of(name: str) -> Any:
        return getattr(args, name, None)

    for name, variable in _NUMBERS.items():
        value = of(name)
        if name == "fusion_threshold_mb" and value is not None:
            value = value * 1024 * 1024
        if name == "cycle_time_ms" and value is not None:
            value = float(value)
        put(variable, value)
    for name, variable in _SWITCHES.items():
        put(variable, None if of(name) is None else bool(of(name)))
    if of("autotune"):
        put(HOROVOD_AUTOTUNE, True)
        for name, variable in _AUTOTUNE.items():
            put(variable, of(name))
    if of("timeline_filename"):
        put(HOROVOD_TIMELINE, of("timeline_filename"))
        put(HOROVOD_TIMELINE_MARK_CYCLES, of("timeline_mark_cycles"))
    put(HOROVOD_STALL_CHECK_DISABLE, of("no_stall_check"))
    put(HOROVOD_LOG_LEVEL, of("log_level"))
    if of("log_with_timestamp") is not None:
        put(HOROVOD_LOG_HIDE_TIME, not of("log_with_timestamp"))
    if of("tcp_flag"):
        put(NCCL_IB_DISABLE, True)
    return env
