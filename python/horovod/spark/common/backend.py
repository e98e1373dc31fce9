"""Where an estimator's training processes run."""
import os
from typing import Any, Callable, Dict, List, Optional, Sequence


def default_num_proc() -> int:
    """As many processes as the active SparkContext has slots."""
    from horovod.spark._submit import active_context
    return active_context().defaultParallelism


class Backend:
    """Runs a function in all processes of a job; results by rank."""

    def run(self, fn: Callable, args: Sequence = (), kwargs: Optional[Dict[str, Any]] = None,
            env: Optional[Dict[str, str]] = None) -> List[Any]:
        raise NotImplementedError()

    def num_processes(self) -> int:
        raise NotImplementedError()


class SparkBackend(Backend):
    """``horovod.spark.run``; further arguments go there.  The processes get ``env``, by default
    a copy of the driver's environment, without CUDA_VISIBLE_DEVICES."""

    def __init__(self, num_proc: Optional[int] = None, env: Optional[Dict[str, str]] = None,
                 **kwargs: Any) -> None:
        self._num_proc = num_proc or default_num_proc()
        self._env = env
        self._kwargs = kwargs

    def run(self, fn: Callable, args: Sequence = (), kwargs: Optional[Dict[str, Any]] = None,
            env: Optional[Dict[str, str]] = None) -> List[Any]:
        import horovod.spark
        variables = dict(self._env) if self._env is not None else _of_driver()
        variables.update(env or {})
        variables.pop("CUDA_VISIBLE_DEVICES", None)
        return horovod.spark.run(fn, args, kwargs, num_proc=self._num_proc, env=variables,
                                 **self._kwargs)

    def num_processes(self) -> int:
        return self._num_proc


class LocalBackend(Backend):
    """``horovod.run``: processes of this machine, without Spark tasks."""

    def __init__(self, num_proc: int = 1, env: Optional[Dict[str, str]] = None) -> None:
        self._num_proc = num_proc
        self._env = env

    def run(self, fn: Callable, args: Sequence = (), kwargs: Optional[Dict[str, Any]] = None,
            env: Optional[Dict[str, str]] = None) -> List[Any]:
        import horovod
        return horovod.run(_with_variables, (fn, tuple(args), kwargs or {},
                                             {**(self._env or {}), **(env or {})}),
                           num_proc=self._num_proc)

    def num_processes(self) -> int:
        return self._num_proc


def _with_variables(fn: Callable, args: tuple, kwargs: Dict[str, Any],
                    variables: Dict[str, str]) -> Any:
    os.environ.update(variables)
    return fn(*args, **kwargs)


def _of_driver() -> Dict[str, str]:
    """The driver's variables, without those that say who a process is or belong to the
    driver's own Spark."""
    from horovod.runner.common.util.env import IDENTITY
    return {name: value for name, value in os.environ.items()
            if name not in IDENTITY and not name.startswith(("PYSPARK_", "_PYSPARK_"))
            and name != "PYTHONPATH"}
