"""``ElasticRayExecutor``, the older way to elastic jobs; see ``elastic_v2``."""
import os
import warnings
from typing import Any, Callable, Dict, List, Mapping, Optional, Union

import ray
import ray.util.client

from horovod.common.advice import advised
from horovod.ray import _discovery
from horovod.ray._log import Collector
from horovod.ray.adapter import BaseParams
from horovod.ray.elastic_v2 import ElasticAdapter
from horovod.runner.common.util import secret, timeout
from horovod.runner.elastic.discovery import HostDiscovery
from horovod.runner.elastic.settings import ElasticSettings

_MESSAGE = ("Timed out waiting for {activity}. Please check connectivity between servers. You "
            "may need to increase timeout_s if you have too many servers.")


class RayHostDiscovery(HostDiscovery):
    """The nodes of the Ray cluster, with all that they have."""

    def __init__(self, use_gpu: bool = False, cpus_per_slot: Union[int, float] = 1,
                 gpus_per_slot: Union[int, float] = 1) -> None:
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = gpus_per_slot

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        return _discovery.find(self.use_gpu, self.cpus_per_slot, self.gpus_per_slot)


class TestDiscovery(RayHostDiscovery, _discovery.ChangingDiscovery):
    """The same, with hosts that come and go."""

    __test__ = False                    # the name is not for pytest

    def __init__(self, min_hosts: int, max_hosts: int, change_frequency_s: float,
                 use_gpu: bool = False, cpus_per_slot: Union[int, float] = 1,
                 gpus_per_slot: Union[int, float] = 1, verbose: bool = True,
                 _graceful: bool = True) -> None:
        RayHostDiscovery.__init__(self, use_gpu, cpus_per_slot, gpus_per_slot)
        _discovery.ChangingDiscovery.__init__(self, min_hosts, max_hosts, change_frequency_s,
                                              verbose, _graceful)

    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        return self.change(super().find_available_hosts_and_slots())


class _SlotSettings(ElasticSettings):
    """With a limit that begins when it is asked for, not when the settings are made."""

    def __init__(self, timeout_s: float, **kwargs: Any) -> None:
        self.timeout_s = timeout_s
        super().__init__(**kwargs)

    @property
    def start_timeout(self) -> timeout.Timeout:
        return timeout.Timeout(self.timeout_s, message=_MESSAGE)

    @start_timeout.setter
    def start_timeout(self, value: Any) -> None:
        pass


class ElasticRayExecutor:
    """Runs a function on as many workers as there is room for, while they come and go.

    ``RayExecutor(min_workers=...)`` says the same; this is the older spelling.
    """

    _is_started = False

    @staticmethod
    def create_settings(min_num_proc: int = 1, max_num_proc: Optional[int] = None,
                        reset_limit: Optional[int] = None, elastic_timeout: float = 600,
                        timeout_s: float = 30, ssh_identity_file: Optional[str] = None,
                        nics: Any = None, min_np: Optional[int] = None,
                        max_np: Optional[int] = None, **kwargs: Any) -> ElasticSettings:
        """Settings of an elastic job; further keywords are attributes of them."""
        if min_np is not None:
            min_num_proc = min_np
            warnings.warn("min_np is deprecated, use min_num_proc", DeprecationWarning,
                          stacklevel=2)
        if max_np is not None:
            max_num_proc = max_np
            warnings.warn("max_np is deprecated, use max_num_proc", DeprecationWarning,
                          stacklevel=2)
        kwargs.setdefault("key", secret.make_secret_key())
        return _SlotSettings(
            timeout_s=timeout_s, discovery=None, min_num_proc=min_num_proc,
            max_num_proc=max_num_proc, elastic_timeout=elastic_timeout,
            reset_limit=reset_limit, num_proc=min_num_proc, nics=nics,
            ssh_identity_file=ssh_identity_file or os.path.expanduser(
                "~/ray_bootstrap_key.pem"), **kwargs)

    def __init__(self, settings: ElasticSettings, use_gpu: bool = False,
                 cpus_per_slot: Union[int, float] = 1,
                 gpus_per_slot: Optional[Union[int, float]] = None,
                 env_vars: Optional[Mapping[str, str]] = None,
                 override_discovery: bool = True) -> None:
        if gpus_per_slot and not use_gpu:
            raise ValueError(advised(
                "gpus_per_slot is set, but use_gpu is False; say use_gpu=True as "
                "well to use GPUs"))
        if use_gpu and isinstance(gpus_per_slot, int) and gpus_per_slot < 1:
            raise ValueError(f"gpus_per_slot must be at least 1 with use_gpu, not "
                             f"{gpus_per_slot}")
        resources = BaseParams(cpus_per_slot, use_gpu, gpus_per_slot)
        self.settings = settings
        self.env_vars = dict(env_vars or {})
        self.use_gpu = use_gpu
        self.cpus_per_slot = cpus_per_slot
        self.gpus_per_slot = resources.gpus_per_worker
        if override_discovery:
            settings.discovery = RayHostDiscovery(use_gpu, cpus_per_slot,
                                                  self.gpus_per_slot or 1)

        self._adapter = ElasticAdapter(
            settings, settings.min_num_proc, settings.max_num_proc, use_gpu, cpus_per_slot,
            self.gpus_per_slot, override_discovery=False, reset_limit=settings.reset_limit,
            cooldown_range=getattr(settings, "cooldown_range", None),
            elastic_timeout=settings.elastic_timeout)
        self._adapter._reserves = override_discovery
        self.driver = self._adapter             # get_slot_info, get_worker_client
        self.rendezvous: Any = None             # the driver is also that

    def start(self) -> None:
        """Waits until there is room for ``min_num_proc`` workers, and keeps it."""
        if ray.util.client.ray.is_connected():
            raise RuntimeError(
                "ElasticRayExecutor does not work through Ray Client (ray://): workers cannot "
                "reach this machine. RayExecutor(min_workers=...) does the same and moves into "
                "the cluster; or run this program on a node of it, with `ray job submit`")
        self._adapter.start(extra_env_vars=self.env_vars)
        self._is_started = True

    def run(self, worker_fn: Callable[[], Any],
            callbacks: Optional[List[Callable[[Any], Any]]] = None) -> List[Any]:
        """``worker_fn()`` on all workers, however many there are and will be; the values of
        those that have returned, by the rank that they were started with."""
        if not self._is_started:
            raise RuntimeError("the executor has not been started; call start() first")
        if not callbacks:
            return self._adapter.run(worker_fn)
        with Collector(callbacks) as queue:
            return self._adapter.run(worker_fn, queue=queue)

    def shutdown(self) -> None:
        """Gives back what ``start`` has reserved; nothing is held after ``run``."""
        self._adapter.shutdown()
