"""The actor that is one rank."""
import os
import socket
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import ray

from horovod.ray import _actor, ray_logger


class BaseHorovodWorker:
    """Holds the user's object and runs functions; also of use outside an actor."""

    executable: Any = None

    def __init__(self, world_rank: int = 0, world_size: int = 1) -> None:
        _actor.set_variables({"HOROVOD_HOSTNAME": self.node_id(), "HOROVOD_RANK": world_rank,
                              "HOROVOD_SIZE": world_size})

    def node_id(self) -> str:
        return _actor.node_id()

    def hostname(self) -> str:
        return socket.gethostname()

    def get_gpu_ids(self) -> List[Any]:
        return ray.get_gpu_ids()

    def update_env_vars(self, env_vars: Mapping[str, Any]) -> None:
        """Sets variables in this process; values become text."""
        _actor.set_variables(env_vars)

    def env_vars(self) -> Dict[str, str]:
        return dict(os.environ)

    def set_queue(self, queue: Any) -> None:
        """Where ``ray_logger.log`` sends; None: nowhere."""
        ray_logger.configure(queue)

    def start_executable(self, executable_cls: Optional[type] = None,
                         executable_args: Optional[Sequence[Any]] = None,
                         executable_kwargs: Optional[Mapping[str, Any]] = None) -> None:
        """Makes the object that ``execute`` hands to its function."""
        if executable_cls is not None:
            self.executable = executable_cls(*(executable_args or ()),
                                             **(executable_kwargs or {}))

    def execute(self, func: Callable[[Any], Any]) -> Any:
        return func(self.executable)

    # -- for the executor ---------------------------------------------------------

    def _facts(self) -> Dict[str, Any]:
        return _actor.facts()

    def _setup(self, variables: Mapping[str, Any], key: bytes) -> None:
        _actor.setup(variables, key)

    def _run(self, func: Callable[[Any], Any], queue: Any) -> Any:
        self.set_queue(queue)
        try:
            return self.execute(func)
        finally:
            self.set_queue(None)

    def _run_marked(self, func: Callable[[Any], Any]) -> tuple:
        """(value, mark): how it ended can be seen by the mark, which is small."""
        return self._run(func, None), None

    def _leave(self) -> None:
        _actor.leave()
