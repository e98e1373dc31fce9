"""What Horovod does, as curves in TensorBoard.

    from torch.utils.tensorboard import SummaryWriter
    from horovod.tensorboard import StatsWriter

    stats = StatsWriter(SummaryWriter("runs/a")) if hvd.rank() == 0 else None
    for step, batch in enumerate(loader):
        ...
        if stats:
            stats.write(step)

The writer is anything with ``add_scalar(tag, value, step)``: that of PyTorch or tensorboardX, or an
experiment of a Lightning logger. `keras_callback` makes a callback for ``model.fit``.
"""
import json
import time
from typing import Any, Callable, Dict, Optional


def _stats() -> Dict[str, Any]:
    from horovod import _core
    return json.loads(_core.stats() or "{}")


class StatsWriter:
    """Writes, every `seconds` at most, what this rank has done since the last time:
    operations and bytes a second by kind, the share of the time in which it slept for others, and
    the rank it slept for longest."""

    def __init__(self, writer: Any, seconds: float = 5.0, prefix: str = "horovod",
                 stats: Callable[[], Dict[str, Any]] = _stats,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self.writer, self.seconds, self.prefix = writer, seconds, prefix
        self._stats, self._clock = stats, clock
        self._then: Optional[Dict[str, Any]] = None
        self._time = 0.0

    def write(self, step: int, force: bool = False) -> bool:
        """True: something was written. The first call only begins."""
        now = self._clock()
        if self._then is not None and not force and now - self._time < self.seconds:
            return False
        then, passed = self._then, now - self._time
        self._then, self._time = self._stats(), now
        if then is None or passed <= 0:
            return False
        for tag, value in self.rates(then, self._then, passed).items():
            self.writer.add_scalar(f"{self.prefix}/{tag}", value, step)
        return True

    @staticmethod
    def rates(then: Dict[str, Any], now: Dict[str, Any], passed: float) -> Dict[str, float]:
        """What is written: tags and values between two `hvd.stats()`."""
        result = {}
        for kind, done in now["operations"].items():
            before = then["operations"].get(kind, {"count": 0, "bytes": 0})
            if done["count"] > 0:
                result[f"{kind}/operations_per_second"] = (done["count"] - before["count"]) / passed
                result[f"{kind}/bytes_per_second"] = (done["bytes"] - before["bytes"]) / passed
        slept = {int(rank): peer["wait_seconds"] -
                 then["peers"].get(rank, {"wait_seconds": 0})["wait_seconds"]
                 for rank, peer in now["peers"].items()}
        result["waiting"] = min(1.0, sum(slept.values()) / passed)
        if slept and max(slept.values()) > 0:
            result["slept_for_rank"] = max(slept, key=lambda rank: slept[rank])
        return result


def keras_callback(writer: Any, seconds: float = 5.0) -> Any:
    """A callback of Keras that writes after batches; give it to ``fit`` on one rank."""
    import keras

    class _Callback(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.stats, self.batches = StatsWriter(writer, seconds), 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.batches += 1
            self.stats.write(self.batches)

    return _Callback()
