"""From a DataFrame to training processes: rows a second, and where the time to the first step goes.

    bench/python/spark_data.py [--rows 1000000] [--columns 10] [--batch 1024]

Two processes read their halves of the same Parquet files, once through the estimators' reader
and once through torch's DataLoader over the columns that pyarrow has read; shuffled, turn by turn
in one run.  Then TorchEstimator.fit on the same rows: from the call to the first step of a rank.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import tempfile
import time

import torch


def ours(path, columns, batch, rank, seen):
    from horovod.spark.common._reader import Loader, Reader
    loader = Loader(Reader(path, columns, batch, rank, 2, seed=1), None)
    for epoch in range(2):
        start = time.perf_counter()
        rows = sum(len(item["x0"]) for item in loader)
        seen.put(("ours", epoch, rows, time.perf_counter() - start))


def torchs(path, columns, batch, rank, seen):
    from pyarrow import dataset
    for epoch in range(2):
        start = time.perf_counter()
        table = dataset.dataset(path, format="parquet").to_table(columns=columns)
        half = table.slice(rank * len(table) // 2, len(table) // 2)
        data = torch.utils.data.TensorDataset(
            *(torch.tensor(half.column(name).to_numpy()) for name in columns))
        loader = torch.utils.data.DataLoader(data, batch, shuffle=True)
        rows = sum(len(item[0]) for item in loader)
        seen.put(("torch", epoch, rows, time.perf_counter() - start))


def race(path, columns, batch, rounds):
    context = multiprocessing.get_context("spawn")
    best = {}
    for _ in range(rounds):
        for function in (ours, torchs):
            seen = context.Queue()
            workers = [context.Process(target=function, args=(path, columns, batch, r, seen))
                       for r in range(2)]
            for worker in workers:
                worker.start()
            for name, epoch, rows, took in [seen.get() for _ in range(4)]:
                best.setdefault((name, epoch), []).append(rows / took)
            for worker in workers:
                worker.join()
    for (name, epoch), rates in sorted(best.items()):
        print(f"{name:6} epoch {epoch}: {2 * max(rates) / 1e6:7.2f} million rows/s, two ranks")


class Timed(torch.nn.Module):
    """Notes when it is first called, and when its process began."""

    def __init__(self, path, columns):
        super().__init__()
        self.path, self.first = path, True
        self.layer = torch.nn.Linear(columns, 1)

    def forward(self, *xs):
        if self.first and self.training:
            self.first = False
            ticks = int(pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + \
                ticks / os.sysconf("SC_CLK_TCK")
            with open(self.path, "a") as file:
                file.write(json.dumps({"began": began, "step": time.time()}) + "\n")
        return self.layer(torch.stack(xs, 1))


def fit(frame, columns, folder, batch):
    from horovod.spark.common.backend import SparkBackend
    from horovod.spark.common.store import Store
    from horovod.spark.torch import TorchEstimator
    notes, prepared = os.path.join(folder, "notes"), []
    model = Timed(notes, len(columns) - 1)

    class Noting(SparkBackend):
        def run(self, *args, **kwargs):
            prepared.append(time.time())
            return super().run(*args, **kwargs)

    estimator = TorchEstimator(
        backend=Noting(2), model=model, store=Store.create(os.path.join(folder, "store")),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=torch.nn.functional.mse_loss, feature_cols=columns[1:], label_cols=columns[:1],
        batch_size=batch, epochs=1, verbose=0)
    start = time.time()
    estimator.fit(frame)
    end = time.time()
    rows = [json.loads(line) for line in open(notes)]
    began, step = min(r["began"] for r in rows), max(r["step"] for r in rows)
    print(f"fit: data written {prepared[0] - start:.2f} s, tasks and processes started "
          f"{began - prepared[0]:.2f} s, imports, init and first batch {step - began:.2f} s, "
          f"the rest {end - step:.2f} s")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--rows", type=int, default=1_000_000)
    p.add_argument("--columns", type=int, default=10)
    p.add_argument("--batch", type=int, default=1024)
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    from pyspark.sql import SparkSession, functions
    session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false") \
        .getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    columns = [f"x{i}" for i in range(a.columns)]
    frame = session.range(a.rows).select(
        *(functions.rand(i).cast("float").alias(name) for i, name in enumerate(columns)))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        start = time.time()
        frame.write.parquet(path)
        print(f"Spark writes {a.rows} rows of {a.columns} floats in {time.time() - start:.2f} s")
        race(path, columns, a.batch, a.rounds)
        fit(frame, columns, folder, a.batch)
    session.stop()


if __name__ == "__main__":
    main()
