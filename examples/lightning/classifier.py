"""An image classifier with Lightning.  Horovod is one argument of the Trainer.

    horovodrun -np 2 python classifier.py
    python classifier.py --strategy auto            # alone

The images are made up: ten patterns under noise.  Nothing here imports horovod.
"""
import argparse

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchmetrics
from torch.utils.data import DataLoader, TensorDataset


def make_images(count, seed):
    """Ten fixed patterns of 16 x 16 pixels, one per class, under noise."""
    patterns = torch.randn(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=g)
    return TensorDataset(0.4 * patterns[labels] + torch.randn(count, 1, 16, 16, generator=g),
                         labels)


class Classifier(L.LightningModule):
    def __init__(self, lr=0.05):
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(4),
            nn.Flatten(), nn.Linear(128, 10))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        return F.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        scores = self.net(images)
        self.accuracy(scores, labels)
        self.log("accuracy", self.accuracy)                 # over all ranks
        self.log("loss", F.cross_entropy(scores, labels), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=self.lr, total_steps=self.trainer.estimated_stepping_batches)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", default="horovod")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--directory", default="checkpoints")
    options = parser.parse_args()

    L.seed_everything(1, verbose=False)
    best = L.pytorch.callbacks.ModelCheckpoint(options.directory, monitor="loss")
    trainer = L.Trainer(strategy=options.strategy, accelerator="cpu", callbacks=[best],
                        sync_batchnorm=True, gradient_clip_val=1.0, logger=False,
                        max_epochs=options.epochs, enable_progress_bar=False,
                        enable_model_summary=False)
    trainer.fit(Classifier(), DataLoader(make_images(options.images, 1), 32, shuffle=True),
                DataLoader(make_images(512, 2), 64))
    if trainer.is_global_zero:
        metrics = {name: f"{value:.3f}" for name, value in trainer.callback_metrics.items()}
        print(f"{trainer.world_size} ranks, {metrics}, best model in {best.best_model_path}")


if __name__ == "__main__":
    main()
