"""Hosts of a Ray cluster for elastic jobs."""
import logging
import os
import random
import time
from typing import Dict, Set

import ray


def find(use_gpu: bool, cpus: float, gpus: float) -> Dict[str, int]:
    """Slots by node address, of all that the nodes have.  Nodes with one address count
    together."""
    result: Dict[str, int] = {}
    for node in ray.nodes():
        if not node["alive"]:
            continue
        resources = node["Resources"]
        slots = resources.get("CPU", 0) // cpus
        if use_gpu:
            slots = min(slots, resources.get("GPU", 0) // gpus)
        if int(slots) > 0:
            address = node["NodeManagerAddress"]
            result[address] = result.get(address, 0) + int(slots)
    return result


class ChangingDiscovery:
    """For tests of elastic jobs: mixed into a discovery, hides a random host or shows one
    again, every ``change_frequency_s``."""

    def __init__(self, min_hosts: int, max_hosts: int, change_frequency_s: float,
                 verbose: bool, graceful: bool) -> None:
        self._min_hosts = min_hosts
        self._max_hosts = max_hosts
        self._frequency_s = change_frequency_s
        self._verbose = verbose
        self._graceful = graceful
        self._changed = time.monotonic()
        self._hidden: Set[str] = set()

    def change(self, found: Dict[str, int]) -> Dict[str, int]:
        now = time.monotonic()
        if now - self._changed >= self._frequency_s:
            self._changed = now
            self._step(found)
        shown = {host: slots for host, slots in found.items() if host not in self._hidden}
        if self._verbose:
            logging.getLogger("horovod.ray").info("hosts: %s", shown)
        return shown

    def _step(self, found: Dict[str, int]) -> None:
        hidden = sorted(self._hidden & set(found))
        shown = sorted(set(found) - self._hidden)
        may_add = bool(hidden) and len(shown) < self._max_hosts
        may_remove = len(shown) > self._min_hosts
        if may_add and (not may_remove or random.random() < 0.5):
            self._hidden.discard(random.choice(hidden))
        elif may_remove and self._graceful:
            self._hidden.add(random.choice(shown))
        elif may_remove:
            _kill_node()


def _kill_node() -> None:
    from ray.autoscaler._private.commands import kill_node
    kill_node(os.path.expanduser("~/ray_bootstrap_config.yaml"), True, False, None)

