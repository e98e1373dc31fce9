"""``RayExecutor``: Horovod jobs on a Ray cluster.

    from horovod.ray import RayExecutor

    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=4)
    executor.start()
    results = executor.run(train, args=[config])        # in rank order
    executor.shutdown()
"""
import copy
import dataclasses
import os
import warnings
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

import ray
import ray.util.client

from horovod.common.advice import advised
from horovod.ray._coordinator import Coordinator
from horovod.ray._log import Collector
from horovod.ray._static import StaticAdapter, StaticParams
from horovod.ray.adapter import BaseParams
from horovod.runner.common.util import secret, timeout

__all__ = ["Coordinator", "MiniSettings", "RayExecutor", "StaticAdapter", "StaticParams"]

_MESSAGE = ("Timed out waiting for {activity}. Please check connectivity between servers. You "
            "may need to increase timeout_s if you have too many servers.")
_OLD_NAMES = {"num_slots": "num_workers_per_host", "cpus_per_slot": "cpus_per_worker",
              "gpus_per_slot": "gpus_per_worker"}


@dataclasses.dataclass
class MiniSettings:
    """What the executor and ``Coordinator`` want to know; any object with these attributes
    does as well."""

    nics: Any = None
    verbose: int = 1
    key: bytes = dataclasses.field(default_factory=secret.make_secret_key, repr=False)
    ssh_port: Optional[int] = None
    ssh_identity_file: Optional[str] = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> timeout.Timeout:
        """A limit that begins now."""
        return timeout.Timeout(self.timeout_s, message=_MESSAGE)


def _write_identity(path: Optional[str], text: str) -> None:
    """For clusters of before; nothing here uses ssh."""
    if path is None or os.path.exists(path):
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _without_key(settings: Any) -> Any:
    """Ray keeps what an actor is made with; the adapter makes a key of its own."""
    result = copy.copy(settings)
    result.key = None
    return result


class RayExecutor:
    """Runs functions, or an object with state, on every worker of a Horovod job.

    The size is ``num_workers``, wherever there is room, or ``num_hosts`` with
    ``num_workers_per_host`` each; ``min_workers`` asks for an elastic job.  Without
    ``use_current_placement_group=False`` workers go into the placement group of the caller,
    if there is one.
    """

    @classmethod
    def create_settings(cls, timeout_s: float = 30, ssh_identity_file: Optional[str] = None,
                        ssh_str: Optional[str] = None, placement_group_timeout_s: float = 100,
                        nics: Any = None, verbose: Optional[int] = None) -> MiniSettings:
        """``timeout_s``: for ranks to find each other; ``placement_group_timeout_s``: for
        resources; ``nics``: names of the network interfaces to use.  Nothing uses ssh."""
        if ssh_str:
            _write_identity(ssh_identity_file, ssh_str)
        settings = MiniSettings(ssh_identity_file=ssh_identity_file, timeout_s=timeout_s,
                                placement_group_timeout_s=placement_group_timeout_s, nics=nics)
        if verbose is not None:
            warnings.warn("verbose is deprecated; set HOROVOD_LOG_LEVEL", DeprecationWarning,
                          stacklevel=2)
            settings.verbose = verbose
        return settings

    def __init__(self, settings: Any, num_workers: Optional[int] = None,
                 num_hosts: Optional[int] = None, num_workers_per_host: Optional[int] = 1,
                 cpus_per_worker: Union[int, float] = 1, use_gpu: bool = False,
                 gpus_per_worker: Optional[Union[int, float]] = None,
                 use_current_placement_group: bool = True,
                 min_workers: Optional[int] = None, max_workers: Optional[int] = None,
                 reset_limit: Optional[int] = None,
                 cooldown_range: Optional[Sequence[int]] = None, elastic_timeout: float = 600,
                 override_discovery: bool = True, **old: Any) -> None:
        for name, value in old.items():
            if name not in _OLD_NAMES:
                raise TypeError(f"RayExecutor() got an unexpected keyword argument {name!r}")
            warnings.warn(f"{name} is deprecated, use {_OLD_NAMES[name]}", DeprecationWarning,
                          stacklevel=2)
        num_workers_per_host = old.get("num_slots", num_workers_per_host)
        cpus_per_worker = old.get("cpus_per_slot", cpus_per_worker)
        gpus_per_worker = old.get("gpus_per_slot", gpus_per_worker)
        if max_workers and (not min_workers or min_workers <= 0):
            raise ValueError("`max_workers` needs a positive `min_workers`: both describe an "
                             "elastic job")
        if min_workers and num_workers:
            raise ValueError("Both `min_workers` and `num_workers` provided. Only one of them "
                             "is allowed: the first asks for an elastic job, the second for "
                             "one of a fixed size.")
        self.settings = settings
        self.params: BaseParams
        if min_workers is not None:
            from horovod.ray.elastic_v2 import ElasticParams
            self.params = ElasticParams(
                min_workers=min_workers, max_workers=max_workers, reset_limit=reset_limit,
                cooldown_range=cooldown_range, elastic_timeout=elastic_timeout,
                override_discovery=override_discovery, cpus_per_worker=cpus_per_worker,
                use_gpu=use_gpu, gpus_per_worker=gpus_per_worker)
        else:
            self.params = StaticParams(
                num_workers=num_workers, num_hosts=num_hosts,
                num_workers_per_host=num_workers_per_host, cpus_per_worker=cpus_per_worker,
                use_gpu=use_gpu, gpus_per_worker=gpus_per_worker,
                use_current_placement_group=use_current_placement_group)
        settings.elastic = self.params.elastic
        self._state = "has not been started; call start() first"

    # -- life -----------------------------------------------------------------------

    def start(self, executable_cls: Optional[type] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        """Starts the workers and, on each, an object of ``executable_cls``.

        ``extra_env_vars`` are set in every worker.  TimeoutError: there was no room.
        """
        if self._is_started():
            raise RuntimeError(advised(
                "the executor has been started already; call shutdown() first"))
        options = {f.name: getattr(self.params, f.name)
                   for f in dataclasses.fields(self.params)}
        self._is_remote = ray.util.client.ray.is_connected()
        adapter_cls: Any = self.params.adapter
        if self._is_remote:
            # In the cluster: workers cannot reach a server on the user's machine.  Several
            # calls at once, so that shutdown() can end one that hangs.
            adapter_cls = ray.remote(num_cpus=0, max_concurrency=8)(adapter_cls)
            self.adapter = adapter_cls.remote(_without_key(self.settings), **options)
        else:
            self.adapter = adapter_cls(self.settings, **options)
        try:
            self._call("start", executable_cls, executable_args, executable_kwargs,
                       extra_env_vars)
        except BaseException as error:
            self._drop(f"could not be started ({type(error).__name__}: {error})")
            raise

    def shutdown(self) -> None:
        """Ends the workers and gives all resources back.  Safe to call again."""
        if not self._is_started():
            return
        try:
            self._call("shutdown")
        finally:
            self._drop("has been shut down; call start() to use it again")

    # -- calls ----------------------------------------------------------------------

    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None,
            callbacks: Optional[List[Callable[[Any], Any]]] = None) -> List[Any]:
        """``fn(*args, **kwargs)`` on every worker; the results in rank order.

        ``callbacks`` are called here with every value that a worker gives to
        ``ray_logger.log``.  When a worker fails, the others are taken out of their
        collectives, and the exception names its rank and node.
        """
        return self._collected(callbacks, "run", fn, args, kwargs)

    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """The same without waiting: references to the results."""
        return self._call("run_remote", fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any],
                callbacks: Optional[List[Callable[[Any], Any]]] = None) -> List[Any]:
        """``fn(executable)`` on every worker; the results in rank order."""
        return self._collected(callbacks, "execute", fn)

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0."""
        return self._call("execute_single", fn)

    # -- inside ---------------------------------------------------------------------

    def _is_started(self) -> bool:
        return hasattr(self, "adapter")

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if not self._is_started():
            raise RuntimeError(f"the executor {self._state}")
        function = getattr(self.adapter, method)
        if self._is_remote:
            return ray.get(function.remote(*args, **kwargs))
        return function(*args, **kwargs)

    def _collected(self, callbacks: Optional[List[Callable[[Any], Any]]], method: str,
                   *args: Any) -> Any:
        if not callbacks:
            return self._call(method, *args)
        if not self._is_started():
            raise RuntimeError(f"the executor {self._state}")
        with Collector(callbacks) as queue:
            return self._call(method, *args, queue=queue)

    def _drop(self, state: str) -> None:
        if self._is_remote:
            ray.kill(self.adapter)
        del self.adapter
        self._state = state
