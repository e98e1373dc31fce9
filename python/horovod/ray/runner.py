"""Jobs of a fixed size on Ray: settings, ``Coordinator``."""
import dataclasses
from typing import Any, Optional

from horovod.ray._coordinator import Coordinator
from horovod.runner.common.util import secret, timeout

__all__ = ["Coordinator", "MiniSettings"]

_MESSAGE = ("Timed out waiting for {activity}. Please check connectivity between servers. You "
            "may need to increase timeout_s if you have too many servers.")


@dataclasses.dataclass
class MiniSettings:
    """What the executor and ``Coordinator`` want to know; any object with these attributes
    does as well."""

    nics: Any = None
    verbose: int = 1
    key: bytes = dataclasses.field(default=secret.make_secret_key(), repr=False)
    ssh_port: Optional[int] = None
    ssh_identity_file: Optional[str] = None
    timeout_s: float = 300
    placement_group_timeout_s: float = 100
    elastic: bool = False

    @property
    def start_timeout(self) -> timeout.Timeout:
        """A limit that begins now."""
        return timeout.Timeout(self.timeout_s, message=_MESSAGE)
