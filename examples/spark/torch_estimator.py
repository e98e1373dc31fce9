"""TorchEstimator: trains on a DataFrame, gives a transformer.

    python torch_estimator.py --store /tmp/digits
"""
import argparse
import tempfile

import torch
from pyspark.sql import SparkSession

import digits
from horovod.spark.common.store import Store
from horovod.spark.torch import TorchEstimator


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.Linear(8 * 16, 10))

    def forward(self, image):
        return self.layers(image)


def accuracy(output, digit):
    return (output.argmax(1) == digit).double().mean()


def main(session, store, rows, epochs, processes):
    data = digits.frame(session, rows)
    net = Net()
    estimator = TorchEstimator(
        num_proc=processes, store=Store.create(store), model=net,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.01),
        loss=torch.nn.CrossEntropyLoss(), metrics=[accuracy],
        feature_cols=["image"], input_shapes=[[-1, 1, 8, 8]], label_cols=["digit"],
        validation=0.2, batch_size=32, epochs=epochs, random_seed=1, verbose=1)
    model = estimator.fit(data)
    for entry in model.getHistory():
        print(f"epoch {entry['epoch']}: loss {entry['train']['loss']:.3f}, validation accuracy "
              f"{entry['validation']['all_metrics'][0][0]:.2f}")
    scored = model.transform(digits.frame(session, 100, seed=1)).collect()
    right = sum(int(row.digit__output.argmax()) == row.digit for row in scored)
    print(f"{right} of 100 new digits are right")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--store", help="directory, or an address that fsspec knows")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    spark = SparkSession.builder.master(options.master).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        main(spark, options.store or folder, options.rows, options.epochs, options.processes)
