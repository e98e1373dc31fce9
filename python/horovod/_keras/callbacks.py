"""Callbacks for ``model.fit``."""
import hashlib
import warnings
from typing import Any, Callable, List, Optional

import keras
import numpy as np

import horovod.numpy as _numpy
from horovod import _keras
from horovod.common.advice import advised
from horovod.tensorflow import functions, mpi_ops
from horovod.tensorflow.util import resource


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Makes model and optimizer of ``root_rank`` those of all ranks, at the end of the first
    batch, when the optimizer has its state.  Variables in ``local_variables`` stay."""

    def __init__(self, root_rank: int, device: str = "",
                 local_variables: Optional[List[Any]] = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local = {id(v) for v in local_variables or []}
        self._checked = False
        for variable in local_variables or []:
            if not hasattr(resource(variable), "assign"):
                raise ValueError(f"local_variables must be variables, not "
                                 f"{type(variable).__name__}")

    def register_local_var(self, variable: Any) -> None:
        self._local.add(id(variable))

    def _shared(self, variables: Any) -> List[Any]:
        return [v for v in variables if id(v) not in self._local]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.broadcast_done:
            return
        functions.broadcast_variables(self._shared(self.model.variables), self.root_rank)
        functions.broadcast_variables(self.model.optimizer.variables, self.root_rank)
        self.broadcast_done = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """A training that does not reduce its gradients looks like one that does; so once
        the weights are compared."""
        if self._checked or not self.broadcast_done:
            return
        self._checked = True
        optimizer = self.model.optimizer
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        distributed = _keras.is_distributed(optimizer)
        if distributed and optimizer._reducer.process_set.process_set_id != 0:
            return
        local = self._local | set(optimizer._reducer.local if distributed else ())
        digest = hashlib.sha256(b"".join(
            resource(v).numpy().tobytes() for v in self.model.trainable_variables
            if id(v) not in local)).digest()[:7]
        mine = np.array([int.from_bytes(digest, "big")], np.int64)
        if len(set(_numpy.allgather(mine, "BroadcastGlobalVariables.check").tolist())) == 1:
            return
        if distributed:
            raise RuntimeError(advised("the weights of the ranks differ after the first epoch"))
        warnings.warn("the weights of the ranks differ after the first epoch: the optimizer is "
                      "not distributed; wrap it in hvd.DistributedOptimizer before compile()")


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics over the ranks at the end of an epoch.  Must stand before the
    callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        names = sorted(logs or {})
        if not names:
            return
        values = np.array([float(logs[n]) for n in names], np.float64)
        means = _numpy.allreduce(values, _numpy.Average, "MetricAverageCallback")
        for name, value in zip(names, means.tolist()):
            logs[name] = value


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Multiplies ``initial_lr`` by ``multiplier(epoch)``, or by ``multiplier`` to the power of
    the epochs done, from ``start_epoch`` to before ``end_epoch``.

    ``staircase``: once per epoch, else with every batch, by fractional epochs.  Momentum is
    corrected for the change only if it is a variable: Keras 3 bakes a number into the step.
    """

    def __init__(self, initial_lr: float, multiplier: Any, start_epoch: int = 0,
                 end_epoch: Optional[int] = None, staircase: bool = True,
                 momentum_correction: bool = True,
                 steps_per_epoch: Optional[int] = None) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self.restore_momentum: Optional[float] = None
        self.multiplier: Callable = multiplier if callable(multiplier) else \
            lambda epoch: multiplier ** (epoch - start_epoch)

    def _autodetect_steps_per_epoch(self) -> int:
        steps = (self.params or {}).get("steps")
        if not steps:
            raise ValueError(advised(
                "the number of steps per epoch is not known: give "
                f"steps_per_epoch to {type(self).__name__}"))
        return steps

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self._autodetect_steps_per_epoch()
        momentum = getattr(self.model.optimizer, "momentum", None)
        if self.momentum_correction and isinstance(momentum, (int, float)) and momentum and \
                not self.staircase:
            self.momentum_correction = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.current_epoch < self.start_epoch or \
                (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if self.staircase and batch == 0:
            self._adjust(self.current_epoch)
        elif not self.staircase:
            assert self.steps_per_epoch
            self._adjust(self.current_epoch + float(batch) / self.steps_per_epoch)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old, new = float(optimizer.learning_rate), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and hasattr(momentum, "assign") and old > 0:
            self.restore_momentum = float(momentum)
            momentum.assign(self.restore_momentum * new / old)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.restore_momentum is not None:
            self.model.optimizer.momentum.assign(self.restore_momentum)
            self.restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` within
    ``warmup_epochs``, with every batch."""

    def __init__(self, initial_lr: float, warmup_epochs: float = 5,
                 momentum_correction: bool = True, steps_per_epoch: Optional[int] = None,
                 verbose: int = 0) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self.steps_per_epoch         # type: ignore[operator]
            size = mpi_ops.size()
            return 1.0 / size * (epoch * (size - 1) / warmup_epochs + 1)
        super().__init__(initial_lr, multiplier, 0, warmup_epochs,      # type: ignore[arg-type]
                         False, momentum_correction, steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose > 0 and mpi_ops.rank() == 0 and self.end_epoch is not None and \
                epoch == self.end_epoch - 1:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to "
                  f"{float(self.model.optimizer.learning_rate):g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """``ModelCheckpoint`` of the best model, whose path is set before the training."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0,
                 save_weights_only: bool = False, mode: str = "auto",
                 save_freq: Any = "epoch") -> None:
        name = "best.weights.h5" if save_weights_only else "best.keras"
        super().__init__(filepath=name, monitor=monitor, verbose=verbose, save_best_only=True,
                         save_weights_only=save_weights_only, mode=mode, save_freq=save_freq)
