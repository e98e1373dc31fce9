"""A script in the words of Lightning 1.x, as many still are.

    horovodrun -np 2 python lightning1.py

``Trainer(accelerator="horovod")`` is gone from Lightning; started by horovodrun, this script
runs as it is on Lightning 2.
"""
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset


class Line(pl.LightningModule):
    """Finds the line y = 2 x + 1."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = torch.nn.functional.mse_loss(self.layer(x), y)
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)      # times the number of ranks


x = torch.linspace(-1, 1, 256).unsqueeze(1)
loader = DataLoader(TensorDataset(x, 2 * x + 1), batch_size=16, shuffle=True)
trainer = pl.Trainer(accelerator="horovod", gpus=0, max_epochs=12, logger=False,
                     enable_checkpointing=False, enable_progress_bar=False,
                     enable_model_summary=False)
model = Line()
trainer.fit(model, loader)
if trainer.is_global_zero:
    print(f"{trainer.world_size} ranks: y = {model.layer.weight.item():.2f} x "
          f"+ {model.layer.bias.item():.2f}")
