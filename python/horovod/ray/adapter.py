"""What a kind of job (static, elastic) has to offer to ``RayExecutor``."""
import abc
import dataclasses
from typing import Any, Callable, List, Mapping, Optional, Sequence, Union

from horovod.common.advice import advised


@dataclasses.dataclass
class BaseParams:
    """Resources of a worker."""

    cpus_per_worker: Union[int, float] = 1
    use_gpu: bool = False
    gpus_per_worker: Optional[Union[int, float]] = None

    def __post_init__(self) -> None:
        if self.gpus_per_worker and not self.use_gpu:
            raise ValueError(advised(
                "gpus_per_worker is set, but use_gpu is False; say use_gpu=True "
                "as well to use GPUs"))
        if self.use_gpu and isinstance(self.gpus_per_worker, int) and self.gpus_per_worker < 1:
            raise ValueError(f"gpus_per_worker must be at least 1 with use_gpu, not "
                             f"{self.gpus_per_worker}")
        if self.gpus_per_worker is None:
            self.gpus_per_worker = int(self.use_gpu)

    @property
    def elastic(self) -> bool:
        raise NotImplementedError

    @property
    def adapter(self) -> type:
        """The class that runs such a job."""
        raise NotImplementedError


class Adapter(abc.ABC):
    """Runs a job; ``RayExecutor`` has one, in its process or in an actor (Ray Client)."""

    @abc.abstractmethod
    def start(self, executable_cls: Optional[type] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        """Starts the workers."""

    @abc.abstractmethod
    def execute(self, fn: Callable[[Any], Any], queue: Any = None) -> List[Any]:
        """``fn(executable)`` on every worker; what ``ray_logger`` gets goes to the queue."""

    @abc.abstractmethod
    def run(self, fn: Callable, args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None, queue: Any = None) -> List[Any]:
        """``fn(*args, **kwargs)`` on every worker."""

    @abc.abstractmethod
    def run_remote(self, fn: Callable, args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """The same without waiting: references to the results."""

    @abc.abstractmethod
    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """``fn(executable)`` on rank 0."""

    @abc.abstractmethod
    def shutdown(self) -> None:
        """Ends the workers and gives everything back.  Safe to call again."""
