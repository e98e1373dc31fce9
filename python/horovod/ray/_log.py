"""The way of ``ray_logger.log`` from the workers to the callbacks of the driver.

A queue actor stands between them.  ``log`` returns when the queue has the value, so what is
put after a call is over comes last: that is how the thread of the callbacks knows its end.
"""
import logging
import threading
from typing import Any, Callable, List

import ray
import ray.util.client
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

DRAIN_S = 60.0
_END = "horovod.ray: end of the values"


class Collector:
    """Calls every callback with every value, in the order of arrival, in a thread."""

    def __init__(self, callbacks: List[Callable[[Any], Any]]) -> None:
        self._callbacks = list(callbacks)

    def __enter__(self) -> Queue:
        options: dict = {"num_cpus": 0}
        if not ray.util.client.ray.is_connected():
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True)
        self._queue = Queue(actor_options=options)
        self._thread = threading.Thread(target=self._deliver, name="horovod-ray-callbacks",
                                        daemon=True)
        self._thread.start()
        return self._queue

    def __exit__(self, *_: Any) -> None:
        try:
            self._queue.put(_END)
            self._thread.join(DRAIN_S)
        finally:
            self._queue.shutdown(force=True)

    def _deliver(self) -> None:
        while True:
            try:
                value = self._queue.get()
            except ray.exceptions.RayError:
                return                  # the queue has been shut down
            if isinstance(value, str) and value == _END:
                return
            for callback in self._callbacks:
                try:
                    callback(value)
                except Exception:
                    logging.getLogger("horovod.ray").exception(
                        "a callback of RayExecutor failed")
