"""Elastic groups of Ray Train V2: a change of the nodes counts at once.

V2 decides on the size of a group by what its ``AutoscalingCoordinator`` has reserved, which looks
at the nodes every 20 s.  Until then a new node is not used; and after the loss of one V2 starts a
group for which there is no room, and waits ``RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S`` (60) for it.

This callback runs in the controller.

1. When the nodes are others than before, it asks the coordinator to look again: after every poll
   of the workers, and before a decision on a failure.  Calls of one process arrive in order, so
   the question of V2 that follows gets the new answer, and nobody has to wait for it.
2. A failure may be the first that is heard of a lost node: Ray itself notices by health checks,
   after 13 s here.  So before such a decision every node is dialled, and when one refuses, the
   decision waits until Ray has given it up, ``LOST_S`` at most.
"""
import logging
import socket
import time
from typing import Any, Dict, FrozenSet, Tuple

import ray
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback

logger = logging.getLogger(__name__)

LOST_S = 30.0                   # rule 2
DIAL_S = 1.0
PAUSE_S = 0.2
NOBODY = "horovod"              # asks the coordinator, and has nothing reserved


class NodeWatch(ControllerCallback, WorkerGroupCallback):
    """Tells Ray Train that nodes have come or gone."""

    _nodes: FrozenSet[str] = frozenset()

    def after_controller_start(self, train_run_context: Any) -> None:
        self._look()

    def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
        self._look()

    def before_controller_execute_failure_decision(self, failure_decision: Any) -> None:
        if failure_decision.name == "RETRY":
            self._await_lost()
            self._look()

    def _look(self) -> None:
        """Never raises: without us V2 finds out by itself, later."""
        try:
            nodes = frozenset(_addresses())
            if nodes != self._nodes:
                self._nodes = nodes
                _tell()
        except Exception:
            logger.debug("Ray Train could not be told that the nodes have changed",
                         exc_info=True)

    @staticmethod
    def _await_lost() -> None:
        """Rule 2."""
        lost = {node for node, address in _addresses().items() if not _answers(address)}
        end = time.monotonic() + LOST_S
        while lost & set(_addresses()) and time.monotonic() < end:
            time.sleep(PAUSE_S)


def _addresses() -> Dict[str, Tuple[str, int]]:
    """Of the nodes that Ray takes for alive, by id."""
    return {n["NodeID"]: (n["NodeManagerAddress"], n["NodeManagerPort"])
            for n in ray.nodes() if n["Alive"]}


def _answers(address: Tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, DIAL_S).close()
    except OSError:
        return False
    return True


def _tell() -> None:
    from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as c
    c.get_or_create_autoscaling_coordinator().get_reserved_resources.remote(
        NOBODY, recompute=True)
