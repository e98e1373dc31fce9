"""A plain module with optimizer and loss as a LightningModule."""
from typing import Any, Dict, List

import torch

from horovod.spark.torch._train import _Losses, dtype_of


def to_lightning_module(package: Any, task: Dict[str, Any]) -> Any:
    """``package`` is lightning.pytorch or pytorch_lightning."""
    class Wrapped(package.LightningModule):         # type: ignore[name-defined]
        """Features go to the module by name."""

        def __init__(self) -> None:
            super().__init__()
            self._module = task["model"]
            self._losses = _Losses(task, {})

        def forward(self, **features: torch.Tensor) -> Any:
            return self._module(**features)

        def _loss(self, batch: Dict[str, torch.Tensor]) -> torch.Tensor:
            dtype = dtype_of(self._module)
            features = {name: batch[name].to(dtype) if batch[name].is_floating_point()
                        else batch[name] for name in task["feature_cols"]}
            if task["input_shapes"]:
                features = {name: tensor.reshape(list(shape)) for (name, tensor), shape
                            in zip(features.items(), task["input_shapes"])}
            labels: List[torch.Tensor] = [batch[name] for name in task["label_cols"]]
            weight = task["sample_weight_col"]
            return self._losses(*self._losses.transform(self(**features), labels),
                                batch[weight] if weight else None)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = self._loss(batch)
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log("val_loss", self._loss(batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return task["optimizer"]

    return Wrapped()
