"""The strategy of Fabric; mixed in before Fabric's ParallelStrategy.

The loop is the user's own, so nothing is done to learning rates.
"""
import contextlib
from typing import Any, ContextManager, Dict, List, Optional

import torch

from horovod.lightning import _metrics
from horovod.lightning._common import Common, broadcast_module, join


class FabricStrategy(Common):
    """Trains with all ranks of a Horovod job.

    compression
        "none", "fp16" or "bf16": gradients travel in 16 bits.
    op
        "average", or "adasum", which combines the ranks' updates.
    """
    sync_control_class: Any

    def __init__(self, accelerator: Any = None,
                 parallel_devices: Optional[List[torch.device]] = None,
                 checkpoint_io: Any = None, precision: Any = None, *,
                 cluster_environment: Any = None, sync_torchmetrics: bool = True,
                 compression: Any = "none", op: Any = "average") -> None:
        self._begin(compression, op)
        super().__init__(                                               # type: ignore
            accelerator=accelerator, parallel_devices=parallel_devices,
            cluster_environment=cluster_environment or self.environment_class(),
            checkpoint_io=checkpoint_io, precision=precision)
        self.sync_torchmetrics = sync_torchmetrics
        self._names: Dict[int, str] = {}
        self._modules_setup = 0
        self._backward_sync_control = self.sync_control_class(self)

    def _configure_launcher(self) -> None:
        """No launcher; but here ``num_nodes`` is known."""
        self.num_nodes = self._num_nodes

    def setup_environment(self) -> None:
        join()
        self._use_device()
        super().setup_environment()                                     # type: ignore

    def module_to_device(self, module: torch.nn.Module) -> None:
        self._use_device()
        module.to(self.root_device)

    def setup_module(self, module: torch.nn.Module) -> torch.nn.Module:
        prefix = f"module{self._modules_setup}." if self._modules_setup else ""
        self._modules_setup += 1
        self._names.update((id(p), prefix + name) for name, p in module.named_parameters())
        broadcast_module(module)
        if self.sync_torchmetrics:
            _metrics.connect(module)
        return module

    def setup_optimizer(self, optimizer: Any) -> Any:
        return self._gradients.wrap(optimizer, self._names)

    def backward(self, tensor: torch.Tensor, module: Any, *args: Any, **kwargs: Any) -> None:
        super().backward(tensor, module, *args, **kwargs)               # type: ignore
        self._gradients.synchronize()

    def all_reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        return self.reduce(tensor, group, reduce_op)

    def teardown(self) -> None:
        self._gradients.release()
        if self._accelerator is not None:
            super().teardown()                                          # type: ignore


class SyncControl:
    """``fabric.no_backward_sync(module, enabled)``; mixed in before Fabric's own class."""

    def __init__(self, strategy: FabricStrategy) -> None:
        self._strategy = strategy

    def no_backward_sync(self, module: Any, enabled: bool = True) -> ContextManager[None]:
        return self._strategy.block_backward_sync() if enabled else contextlib.nullcontext()
