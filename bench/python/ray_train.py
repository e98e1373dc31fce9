#!/usr/bin/env python3
"""HorovodTrainer.fit() against TorchTrainer.fit() (gloo): same model, same batches, one Ray.

    bench/python/ray_train.py [--workers 2] [--rounds 4] [--steps 60] [--json out.json]

The two trainers take turns, the first of a round alternates, on one Ray that is started once.
Shown are floor and median over the rounds of: the whole fit(); from its start until the last
worker is in the loop; what the loop does to set up (hvd: import, init, wrapping the model; torch:
wrapping, the rest is part of the start); the training steps; from the end of the loop until
fit() has returned.  What is missing to the whole is the import of torch in the loop.  A round
before the first warms the page cache and is not counted.  Both must end with the same loss (to
1e-4).  Exit code 1: they do not, or a fit failed.
"""
import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time

PARTS = ["fit", "to the loop", "set up", "steps", "end"]


def network():
    import torch.nn as nn
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(),
                         nn.Linear(256, 10))


def set_up_hvd(model, optimizer):
    import horovod.torch as hvd
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, hvd.DistributedOptimizer(optimizer,
                                           named_parameters=model.named_parameters())


def set_up_torch(model, optimizer):
    from ray.train.torch import prepare_model
    return prepare_model(model), optimizer


def loop(config):
    """Reports from every worker when it was where; the loss of the last step."""
    begin = time.time()
    import torch
    from ray import train
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = train.get_context().get_world_rank()
    data = torch.Generator().manual_seed(rank)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    imported = time.time()
    prepare = set_up_hvd if config["kind"] == "hvd" else set_up_torch
    model, optimizer = prepare(model, optimizer)
    ready = time.time()
    for _ in range(config["steps"]):
        x = torch.randn(32, 64, generator=data)
        loss = torch.nn.functional.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    done = time.time()
    with open(os.path.join(config["directory"], str(rank)), "w") as f:
        json.dump(dict(begin=begin, imported=imported, ready=ready, done=done,
                       loss=loss.item()), f)


def fit(kind, args, storage):
    """Seconds by PARTS, and the losses of all workers."""
    from ray.train import RunConfig, ScalingConfig
    from ray.train.horovod import HorovodTrainer
    from ray.train.torch import TorchTrainer
    directory = tempfile.mkdtemp(dir=storage)
    trainer = {"hvd": HorovodTrainer, "torch": TorchTrainer}[kind](
        loop, train_loop_config=dict(kind=kind, steps=args.steps, directory=directory),
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(name=f"{kind}-{time.time()}", storage_path=storage))
    start = time.time()
    trainer.fit()
    end = time.time()
    rows = [json.load(open(os.path.join(directory, str(r)))) for r in range(args.workers)]

    def last(name):
        return max(row[name] for row in rows)
    return dict(zip(PARTS, [end - start, last("begin") - start,
                            max(row["ready"] - row["imported"] for row in rows),
                            last("done") - last("ready"), end - last("done")])), \
        [row["loss"] for row in rows]


def measure(args, folder):
    storage = os.path.join(folder, "storage")
    os.makedirs(storage)
    found = {"hvd": [], "torch": []}
    losses = {}
    for turn in range(args.rounds + 1):
        for kind in (["hvd", "torch"], ["torch", "hvd"])[turn % 2]:
            times, losses[kind] = fit(kind, args, storage)
            print(f"round {turn} {kind:6}" + "".join(f"{name} {times[name]:.2f}  "
                                                     for name in PARTS),
                  file=sys.stderr, flush=True)
            if turn > 0:
                found[kind].append(times)
    if any(abs(a - b) > 1e-4 for a, b in zip(losses["hvd"], losses["torch"])):
        raise SystemExit(f"the two do not compute the same: {losses}")
    return found


def show(found):
    print(f"{'seconds':14}{'hvd floor':>12}{'median':>9}{'torch floor':>14}{'median':>9}"
          f"{'median hvd / torch':>21}")
    for part in PARTS:
        cells = []
        for kind in ("hvd", "torch"):
            values = [times[part] for times in found[kind]]
            cells += [min(values), statistics.median(values)]
        print(f"{part:14}{cells[0]:12.3f}{cells[1]:9.3f}{cells[2]:14.3f}{cells[3]:9.3f}"
              f"{cells[1] / cells[3]:21.2f}")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--workers", type=int, default=2)
    p.add_argument("--rounds", type=int, default=4)
    p.add_argument("--steps", type=int, default=60)
    p.add_argument("--interval", default="0.2", help="seconds between Ray Train's polls")
    p.add_argument("--json")
    args = p.parse_args()
    folder = tempfile.mkdtemp(prefix="hvb", dir="/tmp")     # short: Ray's sockets are below
    os.environ.update(HOME=folder, RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=args.interval,
                      RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")
    import ray
    try:
        ray.init(address="local", num_cpus=args.workers + 2, include_dashboard=False,
                 object_store_memory=100 << 20, _temp_dir=os.path.join(folder, "r"),
                 log_to_driver=False, logging_level="ERROR")
        found = measure(args, folder)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    show(found)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(dict(args=vars(args), seconds=found), f)


if __name__ == "__main__":
    sys.exit(main())
