"""Where an elastic job may run."""
import abc
from typing import Dict


class HostDiscovery(abc.ABC):
    """Finds the hosts of a job, again and again."""

    @abc.abstractmethod
    def find_available_hosts_and_slots(self) -> Dict[str, int]:
        """Slots by host name."""
