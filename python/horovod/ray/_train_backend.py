"""Horovod's backend for Ray Train V2: runs in Ray Train's controller, at every attempt.

1. on_start asks all workers for their node, computes the topology by node id, starts the
   rendezvous in this process and sends each worker its variables and the job key.  The key
   is an argument of an actor method: in no environment, command line, log or state of Ray.
2. Every attempt (first start, restart after a failure, resize) is a new generation with a
   rendezvous of its own; a late worker of an old attempt is refused by the new one.
3. Only the stable methods of a worker group are used, execute_async and
   execute_single_async; and its shutdown, if it has one, after a start that failed.
4. Every wait is bounded.  Ray retries an attempt that fails with RayActorError and gives
   up on anything else; so a worker that does not answer is reported as the former, and
   what will not get better by itself (no Horovod on the workers) as what it is.
5. on_shutdown wakes ranks that are blocked in a collective or in hvd.init(), with the
   reason of the loop that has failed, and never raises: an error there would fail a run
   that has succeeded.
6. One object serves all attempts of a fit(); it comes to the controller by pickle, without
   __init__, before anything has started.
"""
import logging
from typing import Any, Dict, List, Optional

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.train.backend import Backend

from horovod.ray import _actor
from horovod.ray.runner import Coordinator
from horovod.ray.utils import choose_nics, nics_to_env_var

logger = logging.getLogger(__name__)

_ASK_S = 2.0
_ABORT_S = 5.0          # as long as Ray Train itself waits for workers that end
_OVER = "Ray Train has ended this attempt of the training run"
_ATTEMPTS = 3           # starts in a row without an answer, after which we give up


class WorkersUnavailable(RayActorError):
    """Workers did not answer in time while the job was set up; Ray Train tries again."""

    def __init__(self, text: str) -> None:
        super().__init__(error_msg=text)


class HorovodBackend(Backend):
    """Makes a Horovod job of the workers of an attempt."""
    share_cuda_visible_devices = True
    has_replica_groups = False

    _generation = 0
    _silent = 0                                     # attempts in a row without an answer
    _coordinator: Optional[Coordinator] = None      # of the attempt that runs

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        self._stop()
        self._generation += 1
        try:
            self._form(worker_group, backend_config)
        except BaseException:
            self._stop()                            # Ray calls no on_shutdown after this
            _discard(worker_group)
            raise
        self._silent = 0

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        try:
            why = self._reason(worker_group)
            if self._coordinator is not None:
                self._coordinator.abort(why)        # who waits in hvd.init()
            refs = worker_group.execute_async(_actor.abort, why)
            ray.wait(refs, num_returns=len(refs), timeout=_ABORT_S)
        except Exception:
            logger.debug("workers could not be told that the attempt is over",
                         exc_info=True)
        self._stop()

    @staticmethod
    def _reason(group: Any) -> str:
        """Of the loop that has failed, if one has."""
        refs = group.execute_async(_actor.failure)
        ready, _ = ray.wait(refs, num_returns=len(refs), timeout=_ASK_S)
        for ref in ready:
            try:
                why = ray.get([ref], timeout=_ASK_S)[0]
            except RayError:                        # a worker that died
                continue
            if why:
                return f"{_OVER}: {why}"
        return _OVER

    def _form(self, group: Any, config: Any) -> None:
        limit = config.start_timeout
        facts = self._answers(group.execute_async(_actor.facts), limit, "tell its node")
        self._coordinator = coordinator = Coordinator(config, self._generation)
        for rank, fact in enumerate(facts):
            coordinator.register(fact["hostname"], fact["node_id"], rank)
        topology = coordinator.finalize_registration()
        common = {**nics_to_env_var(choose_nics(facts, config.nics)), **coordinator.serve(),
                  **config.variables}
        refs = [group.execute_single_async(
                    rank, _actor.setup,
                    {**common, **topology[rank], "HOROVOD_RANK": rank,
                     "HOROVOD_SIZE": len(facts), "HOROVOD_HOSTNAME": fact["node_id"]},
                    coordinator.key)
                for rank, fact in enumerate(facts)]
        self._answers(refs, limit, "take its variables")
        logger.info("Horovod job of %d workers on %d nodes, attempt %d", len(facts),
                    len(coordinator.node_id_by_rank), self._generation)

    def _answers(self, refs: List[Any], limit: Any, what: str) -> List[Any]:
        try:
            return ray.get(refs, timeout=limit.remaining())
        except GetTimeoutError:
            ready, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            silent = [rank for rank, ref in enumerate(refs) if ref not in ready]
        self._silent += 1
        text = (f"Horovod setup: rank {', '.join(map(str, silent))} did not {what} within "
                f"HorovodConfig(timeout_s={limit._timeout:g})")
        if self._silent >= _ATTEMPTS:
            raise TimeoutError(f"{text}; given up after {self._silent} attempts")
        raise WorkersUnavailable(text)

    def _stop(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            return
        try:
            coordinator.shutdown()
        except Exception:
            logger.debug("the rendezvous did not stop in order", exc_info=True)

    def __getstate__(self) -> Dict[str, Any]:
        return {}


def _discard(group: Any) -> None:
    """Ends a group whose start failed.  Ray Train (2.60) forgets it instead: its placement
    group would hold the resources that the next attempt waits for."""
    try:
        end = getattr(group, "shutdown", None)
        if end is not None:
            end()
    except Exception:
        logger.debug("the workers of a failed start did not end in order", exc_info=True)
