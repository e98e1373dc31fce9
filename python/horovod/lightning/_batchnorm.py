"""``Trainer(sync_batchnorm=True)``: batch statistics of all ranks, for the time of a fit."""
from typing import List, Tuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

import horovod.torch as hvd


class Converted:
    """The BatchNorm layers that were replaced, and how to get them back."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._places: List[Tuple[torch.nn.Module, str, torch.nn.Module]] = []
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, _BatchNorm) and not isinstance(child, hvd.SyncBatchNorm):
                    self._places.append((parent, name, child))
                    setattr(parent, name, hvd.SyncBatchNorm.convert(child))

    def revert(self) -> None:
        """The user's own layers again, with what they have learned."""
        for parent, name, layer in self._places:
            trained = getattr(parent, name)
            layer._parameters, layer._buffers = trained._parameters, trained._buffers
            layer.train(trained.training)
            setattr(parent, name, layer)
        self._places = []
