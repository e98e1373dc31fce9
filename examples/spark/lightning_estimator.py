"""The estimator for Lightning: a LightningModule, validation, the best checkpoint.

    python lightning_estimator.py --store /tmp/digits
"""
import argparse
import tempfile

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from pyspark.sql import SparkSession

import digits
from horovod.spark.common.store import Store
from horovod.spark.lightning import TorchEstimator


class Digits(pl.LightningModule):
    """A batch is a dictionary of columns."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(),
                                          torch.nn.Linear(32, 10))

    def forward(self, image):
        return self.layers(image.float())

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["image"]), batch["digit"])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        output = self(batch["image"])
        self.log("val_loss", F.cross_entropy(output, batch["digit"]), sync_dist=True)
        self.log("val_accuracy", (output.argmax(1) == batch["digit"]).float().mean(),
                 sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.005)


def main(session, store, rows, epochs, processes):
    estimator = TorchEstimator(
        num_proc=processes, store=Store.create(store), model=Digits(),
        feature_cols=["image"], input_shapes=[[-1, 64]], label_cols=["digit"],
        validation=0.2, batch_size=32, epochs=epochs, random_seed=1, verbose=0,
        callbacks=[pl.callbacks.ModelCheckpoint(monitor="val_loss")])
    model = estimator.fit(digits.frame(session, rows))
    print("last figures:", {name: round(value, 3) for name, value in model.getHistory().items()})
    scored = model.transform(digits.frame(session, 100, seed=1)).collect()
    right = sum(int(row.digit__output.argmax()) == row.digit for row in scored)
    print(f"{right} of 100 new digits are right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--store", help="directory, or an address that fsspec knows")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    spark = SparkSession.builder.master(options.master).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        main(spark, options.store or folder, options.rows, options.epochs, options.processes)
