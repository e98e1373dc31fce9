"""Settings of an elastic job.

Imported by: horovod.ray; programs written for Horovod 0.28.
"""
from typing import Any, Dict, Optional, Sequence

from horovod.runner.common.util.settings import BaseSettings


class ElasticSettings(BaseSettings):
    """How few and how many processes, and for how long to wait for them."""

    def __init__(self, discovery: Any, min_num_proc: Optional[int],
                 max_num_proc: Optional[int], elastic_timeout: Optional[float],
                 reset_limit: Optional[int], cooldown_range: Optional[Sequence[int]] = None,
                 **kwargs: Any) -> None:
        super().__init__(elastic=True, **kwargs)
        self.discovery = discovery
        self.min_num_proc = min_num_proc
        self.max_num_proc = max_num_proc
        self.elastic_timeout = elastic_timeout
        self.reset_limit = reset_limit
        self.cooldown_range = cooldown_range

    def __getstate__(self) -> Dict[str, Any]:
        """The discovery stays where it is."""
        return {**self.__dict__, "discovery": None}
