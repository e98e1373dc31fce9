"""``horovod.spark.run`` and ``horovod.spark.run_elastic``: arguments and defaults."""
import os
import sys
import warnings
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

from horovod.common.advice import advised
from horovod.runner._outcome import function_message
from horovod.spark._elastic_job import ElasticJob
from horovod.spark._service import Output
from horovod.spark._static_job import StaticJob
from horovod.spark._submit import active_context

START_TIMEOUT_S = 600
ELASTIC_TIMEOUT_S = 600


def _start_limit(start_timeout: Optional[float]) -> float:
    if start_timeout is None:
        start_timeout = float(os.environ.get("HOROVOD_SPARK_START_TIMEOUT") or START_TIMEOUT_S)
    if start_timeout <= 0:
        raise ValueError(f"start_timeout must be positive, not {start_timeout}")
    return float(start_timeout)


def _environment(env: Any) -> Dict[str, str]:
    if env is not None and type(env) is not dict:
        raise Exception(f"env argument must be a dict, not {type(env)}")
    return {str(name): str(value) for name, value in (env or {}).items()}


def _processes(num_proc: Optional[int], context: Any) -> int:
    count = context.defaultParallelism if num_proc is None else num_proc
    if count < 1:
        raise ValueError(f"num_proc must be at least 1, not {count}")
    return count


def run(fn: Callable, args: Sequence = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: Optional[int] = None, start_timeout: Optional[float] = None,
        use_mpi: Optional[bool] = None, use_gloo: Optional[bool] = None,
        extra_mpi_args: Optional[str] = None, env: Optional[Dict[str, str]] = None,
        stdout: Any = None, stderr: Any = None, verbose: int = 1,
        nics: Optional[Iterable[str]] = None, prefix_output_with_timestamp: bool = False,
        executable: Optional[str] = None) -> List[Any]:
    """Runs ``fn(*args, **kwargs)`` in ``num_proc`` processes, one per Spark task.

    Returns what they returned, by rank.  All tasks must run at the same time: TimeoutException
    when Spark has not started them within ``start_timeout`` seconds.  When a process fails,
    the others are ended, and RuntimeError tells rank and traceback.  With ``stdout`` or
    ``stderr`` (text streams) the output of the ranks comes there line by line.
    """
    variables = _environment(env)
    if use_mpi and use_gloo:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if use_mpi:
        raise ValueError(advised(
            "horovod.spark.run starts the processes in Spark tasks, not by mpirun: "
            "leave use_mpi away"))
    context = active_context()
    job = StaticJob(context, _processes(num_proc, context), _start_limit(start_timeout),
                    function_message(fn, args, kwargs or {}), executable or sys.executable,
                    variables, list(nics) if nics else None,
                    Output(stdout, stderr, prefix_output_with_timestamp))
    return job.run()


def run_elastic(fn: Callable, args: Sequence = (), kwargs: Optional[Dict[str, Any]] = None,
                num_proc: Optional[int] = None, min_num_proc: Optional[int] = None,
                max_num_proc: Optional[int] = None, start_timeout: Optional[float] = None,
                elastic_timeout: Optional[float] = None, reset_limit: Optional[int] = None,
                env: Optional[Dict[str, str]] = None, stdout: Any = None, stderr: Any = None,
                verbose: int = 1, nics: Optional[Iterable[str]] = None,
                prefix_output_with_timestamp: bool = False, min_np: Optional[int] = None,
                max_np: Optional[int] = None) -> List[Any]:
    """Runs ``fn(*args, **kwargs)`` in processes of Spark tasks that may come and go.

    The job begins when ``num_proc`` tasks have started, goes on with as few as
    ``min_num_proc`` and takes up to ``max_num_proc``; ``fn`` keeps its state with
    ``hvd.elastic.run``.  A lost executor or a failed process is an incident: Spark starts the
    task again (``spark.task.maxFailures``; in local mode ``local[cores,failures]``), and its
    process joins.  Returns the values of the ranks of the last generation.
    """
    variables = _environment(env)
    least = _renamed("min_num_proc", min_num_proc, "min_np", min_np)
    most = _renamed("max_num_proc", max_num_proc, "max_np", max_np)
    context = active_context()
    count = _processes(num_proc, context)
    least, most = least or count, most or count
    if not 1 <= least <= count <= most:
        raise ValueError(f"min_num_proc {least}, num_proc {count} and max_num_proc {most} must "
                         "not decrease")
    job = ElasticJob(context, most, _start_limit(start_timeout),
                     function_message(fn, args, kwargs or {}), sys.executable, variables,
                     list(nics) if nics else None,
                     Output(stdout, stderr, prefix_output_with_timestamp), np=count,
                     min_np=least, elastic_timeout_s=_elastic_limit(elastic_timeout),
                     reset_limit=reset_limit, verbose=verbose)
    return job.run()


def _elastic_limit(elastic_timeout: Optional[float]) -> float:
    if elastic_timeout is None:
        elastic_timeout = float(os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or ELASTIC_TIMEOUT_S)
    if elastic_timeout <= 0:
        raise ValueError(f"elastic_timeout must be positive, not {elastic_timeout}")
    return float(elastic_timeout)


def _renamed(name: str, value: Optional[int], old: str, given: Optional[int]) -> Optional[int]:
    if given is None:
        return value
    warnings.warn(f"{old} is deprecated, use {name}", DeprecationWarning, stacklevel=3)
    return given if value is None else value
