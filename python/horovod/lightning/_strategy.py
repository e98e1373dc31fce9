"""The strategy of the Trainer; mixed in before Lightning's ParallelStrategy.

One process is one rank.  Processes come from horovodrun, Ray or a scheduler, so there is no
launcher here, and ``devices`` and ``num_nodes`` have nothing to say.
"""
from typing import Any, Callable, Dict, List, Optional

import torch
from lightning_utilities.core.rank_zero import rank_zero_info

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.lightning import _batchnorm, _lr, _metrics
from horovod.lightning._common import Common, broadcast_module, give_up, job, join
from horovod.lightning._gradients import hand_over


class TrainerStrategy(Common):
    """Trains with all ranks of a Horovod job.

    scale_lr
        multiply learning rates by the number of ranks, as Lightning 1.x did.
    sync_torchmetrics
        let torchmetrics objects of the module reduce over the ranks.
    compression
        "none", "fp16" or "bf16": gradients travel in 16 bits.
    op
        "average", or "adasum", which combines the ranks' updates.
    concatenate
        ``all_gather`` joins along the first dimension, as in Lightning 1.x, instead of
        stacking along a new one.
    """
    # Lightning's.
    model: Any
    lightning_module: Any
    lr_scheduler_configs: List[Any]
    optimizers: List[Any]
    precision_plugin: Any
    pre_backward: Callable[[torch.Tensor], None]
    post_backward: Callable[[torch.Tensor], None]
    _layer_sync: Any

    def __init__(self, accelerator: Any = None,
                 parallel_devices: Optional[List[torch.device]] = None,
                 checkpoint_io: Any = None, precision_plugin: Any = None, *,
                 cluster_environment: Any = None, scale_lr: bool = True,
                 sync_torchmetrics: bool = True, compression: Any = "none",
                 op: Any = "average", concatenate: bool = False) -> None:
        self._begin(compression, op)
        super().__init__(                                               # type: ignore
            accelerator=accelerator, parallel_devices=parallel_devices,
            cluster_environment=cluster_environment or self.environment_class(),
            checkpoint_io=checkpoint_io, precision_plugin=precision_plugin)
        self.scale_lr = scale_lr
        self.sync_torchmetrics = sync_torchmetrics
        self.concatenate = concatenate
        self._converted: Optional[_batchnorm.Converted] = None

    # -- the beginning of fit, validate, test, predict ----------------------------

    def setup_environment(self) -> None:
        join()
        self._use_device()
        super().setup_environment()                                     # type: ignore

    def setup(self, trainer: Any) -> None:
        fitting = trainer.state.fn == "fit"
        if fitting:
            self._sync_batchnorm()
        super().setup(trainer)                                          # type: ignore
        broadcast_module(self.lightning_module)
        self._connect_metrics()

    def model_to_device(self) -> None:
        self._use_device()
        self.model.to(self.root_device)

    def setup_optimizers(self, trainer: Any) -> None:
        super().setup_optimizers(trainer)                               # type: ignore
        self._gradients.release()
        names = {id(p): name for name, p in self.lightning_module.named_parameters()}
        self.optimizers = [self._prepared(o, names) for o in self.optimizers]

    def _prepared(self, optimizer: Any, names: Dict[int, str]) -> Any:
        """Scaled and wrapped; the schedulers follow."""
        optimizer = getattr(optimizer, "_optimizer", optimizer)     # a LightningOptimizer
        if type(optimizer).__name__ == "_MockOptimizer":            # there is none
            return optimizer
        schedulers = [config.scheduler for config in self.lr_scheduler_configs
                      if getattr(config.scheduler, "optimizer", None) is optimizer]
        if self.scale_lr:
            before = _lr.scale(optimizer, schedulers, hvd.size())
            if before:
                rank_zero_info(_lr.told(before))
        wrapped = self._gradients.wrap(optimizer, names)
        hand_over(schedulers, optimizer, wrapped)
        return wrapped

    def _sync_batchnorm(self) -> None:
        if self._layer_sync is None:
            return
        if type(self._layer_sync).__name__ == "TorchSyncBatchNorm":
            self._converted = _batchnorm.Converted(self.model)
        else:                                                       # the user's own plugin
            self.model = self._layer_sync.apply(self.model)

    def _connect_metrics(self) -> None:
        if not self.sync_torchmetrics or hvd.size() == 1:
            return
        count = _metrics.connect(self.lightning_module)
        if count:
            rank_zero_info(f"Horovod: torchmetrics objects ({count}) are reduced over the "
                           "ranks; HorovodStrategy(sync_torchmetrics=False) leaves them")

    # -- the step -----------------------------------------------------------------

    def backward(self, closure_loss: torch.Tensor, optimizer: Any, *args: Any,
                 **kwargs: Any) -> torch.Tensor:
        """As Lightning's own, with the reduction before ``on_after_backward``."""
        self.pre_backward(closure_loss)
        module, precision = self.lightning_module, self.precision_plugin
        closure_loss = precision.pre_backward(closure_loss, module)
        precision.backward(closure_loss, module, optimizer, *args, **kwargs)
        self._gradients.synchronize()
        closure_loss = precision.post_backward(closure_loss, module)
        self.post_backward(closure_loss)
        return closure_loss

    def all_gather(self, tensor: torch.Tensor, group: Any = None,
                   sync_grads: bool = False) -> torch.Tensor:
        gathered = super().all_gather(tensor, group, sync_grads)
        return gathered.flatten(0, 1) if self.concatenate and gathered.dim() > 1 else gathered

    # -- the end ------------------------------------------------------------------

    def _is_alone(self) -> bool:
        """Lightning tells callbacks of an exception before it tells us: a checkpoint that
        they save then must not wait for the others, who have not heard of it."""
        trainer = getattr(self.lightning_module, "_trainer", None)
        return super()._is_alone() or \
            (trainer is not None and trainer.state.status == "interrupted")

    def on_exception(self, exception: BaseException) -> None:
        """Ends the job for all ranks: they may be waiting for this one."""
        super().on_exception(exception)                                 # type: ignore
        if not hvd.is_initialized():
            return
        if isinstance(exception, HostsUpdatedInterrupt):
            return                                      # elastic training begins a new round
        if isinstance(exception, HorovodInternalError):
            job.broken = job.broken or exception.scope != "OP"
            return                                      # the others have been told
        text = str(exception).strip().partition("\n")[0]
        give_up(f"rank {hvd.rank()} failed in Lightning: {type(exception).__name__}"
                f"{': ' if text else ''}{text}")

    def teardown(self) -> None:
        """Leaves the model as it was.  No collective: a rank may come here alone.  The job
        goes on: ``hvd.rank()`` is still valid."""
        self._gradients.release()
        if self._converted is not None:
            self._converted.revert()
            self._converted = None
        elif self._layer_sync is not None and self.model is not None:
            self.model = self._layer_sync.revert(self.model)
        if self._accelerator is not None:
            super().teardown()                                          # type: ignore

    # -- registration and pickling ------------------------------------------------

    @classmethod
    def register_strategies(cls, strategy_registry: Any) -> None:
        """Registered by horovod._startup, not from the list of Lightning's own classes."""

    def __getstate__(self) -> Dict[str, Any]:
        """Without what belongs to this process: optimizers with their hooks."""
        state = super().__getstate__()                                  # type: ignore
        state.update(_optimizers=[], lr_scheduler_configs=[], _converted=None)
        state["_gradients"] = type(self._gradients)(self._gradients.compression,
                                                    self._gradients.op)
        return state
