#!/usr/bin/env python3
"""Lightning's fit with strategy="horovod" beside strategy="ddp" (gloo), same processes.

    horovodrun -np 2 python bench/python/lightning_fit.py [--rounds 6] [--batches 200] [--json FILE]

Each round fits the same model on the same batches with both, in turn; the order changes from
round to round.  fit: the whole call.  step: from the start to the end of the training, divided by
the batches.  Times are those of the slowest rank; the table has the median over the rounds and the
best round.  Both must end with the same weights, up to rounding.
"""
import argparse
import json
import logging
import os
import statistics
import time
import warnings

import lightning as L
import torch
import torch.nn as nn

import horovod.torch as hvd
from horovod.lightning import HorovodEnvironment, HorovodStrategy

BATCH = 32
MODELS = {
    "tiny": ("MLP 32-32-10, 1.4 k", lambda: nn.Sequential(
        nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))),
    "mlp": ("MLP, 6 layers of 256, 330 k", lambda: nn.Sequential(
        nn.Linear(32, 256), nn.ReLU(),
        *(layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())),
        nn.Linear(256, 10))),
    "wide": ("MLP, 4 layers of 1024, 3.2 M", lambda: nn.Sequential(
        nn.Linear(32, 1024), nn.ReLU(),
        *(layer for _ in range(3) for layer in (nn.Linear(1024, 1024), nn.ReLU())),
        nn.Linear(1024, 10))),
}


class Module(L.LightningModule):
    def __init__(self, build):
        super().__init__()
        torch.manual_seed(0)
        self.net = build()
        self.began = self.ended = 0.0

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def on_train_start(self):
        self.began = time.perf_counter()

    def on_train_end(self):
        self.ended = time.perf_counter()


def strategy(name, environment):
    if name == "horovod":
        return HorovodStrategy(scale_lr=False)
    return L.pytorch.strategies.DDPStrategy(cluster_environment=environment,
                                            process_group_backend="gloo",
                                            gradient_as_bucket_view=True)


def batches(count):
    g = torch.Generator().manual_seed(hvd.rank())
    data = [(torch.randn(BATCH, 32, generator=g), torch.randint(0, 10, (BATCH,), generator=g))
            for _ in range(count)]
    return torch.utils.data.DataLoader(data, batch_size=None)


def fit(name, build, data, environment):
    """(seconds of fit, seconds of a step, weights)"""
    module = Module(build)
    trainer = L.Trainer(strategy=strategy(name, environment), accelerator="cpu",
                        devices=hvd.size(), max_epochs=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, use_distributed_sampler=False)
    hvd.barrier()
    start = time.perf_counter()
    trainer.fit(module, data)
    whole = time.perf_counter() - start
    times = torch.tensor([whole, (module.ended - module.began) / len(data)],
                         dtype=torch.float64)
    worst = hvd.allreduce(times, op=hvd.Max).tolist()
    return *worst, torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def compare(build, data, rounds, environment):
    """{name: [(fit, step), ...]}"""
    results = {"horovod": [], "ddp": []}
    for number in range(-1, rounds):                # the first is not counted
        names = ["horovod", "ddp"] if number % 2 else ["ddp", "horovod"]
        weights = {}
        for name in names:
            whole, step, weights[name] = fit(name, build, data, environment)
            if number >= 0:
                results[name].append((whole, step))
        torch.testing.assert_close(weights["horovod"], weights["ddp"], rtol=1e-3, atol=1e-4)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--models", default="tiny,mlp,wide")
    parser.add_argument("--json")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    environment = HorovodEnvironment()
    data = batches(options.batches)
    everything = {}
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, batch {BATCH}, {options.batches} batches, "
              f"{options.rounds} rounds, load {os.getloadavg()[0]:.1f}\n"
              f"{'':30s} {'fit, ms':>22s} {'step, us: median':>24s} {'best':>22s}\n"
              f"{'':30s} {'horovod':>11s}{'ddp':>11s}   {'horovod':>11s}{'ddp':>10s}"
              f"  {'horovod':>11s}{'ddp':>10s}", flush=True)
    for letter in options.models.split(","):
        words, build = MODELS[letter]
        results = everything[letter] = compare(build, data, options.rounds, environment)
        fits = [1e3 * statistics.median(r[0] for r in results[n]) for n in results]
        steps = [1e6 * statistics.median(r[1] for r in results[n]) for n in results]
        best = [1e6 * min(r[1] for r in results[n]) for n in results]
        if hvd.rank() == 0:
            print(f"{words:30s} {fits[0]:11.0f}{fits[1]:11.0f}   {steps[0]:11.0f}"
                  f"{steps[1]:10.0f}  {best[0]:11.0f}{best[1]:10.0f}", flush=True)
    if options.json and hvd.rank() == 0:
        with open(options.json, "w") as file:
            json.dump(everything, file)


if __name__ == "__main__":
    main()
