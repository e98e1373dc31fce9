"""Ray Train with Horovod: a dataset, two workers, a checkpoint after each epoch.

    python train_quick_start.py                             # Ray Train V2, the default
    RAY_TRAIN_V2_ENABLED=0 python train_quick_start.py      # Ray Train V1

A worker that fails does not end the run: all workers start again and continue from the last
checkpoint.
"""
import argparse
import os
import tempfile

import torch
import torch.nn as nn

import horovod.torch as hvd
import ray
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
import ray.train.torch          # for train.torch.get_device()
from ray.train.horovod import HorovodConfig, HorovodTrainer


def train_loop(config):
    hvd.init()
    device = train.torch.get_device()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=config["lr"]),
                                         named_parameters=model.named_parameters())

    # After a failure, or when the run is continued, there is a checkpoint to start from.
    first_epoch, losses = 0, []
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            saved = torch.load(os.path.join(directory, "model.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        first_epoch, losses = saved["epoch"] + 1, saved["losses"]
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)

    shard = train.get_dataset_shard("train")        # this worker's part of the dataset
    for epoch in range(first_epoch, config["epochs"]):
        total, batches = torch.zeros(()), 0
        for batch in shard.iter_torch_batches(batch_size=32, dtypes=torch.float,
                                              device=device):
            loss = nn.functional.mse_loss(model(batch["x"].unsqueeze(1)),
                                          batch["y"].unsqueeze(1))
            optimizer.zero_grad()
            loss.backward()                         # gradients are averaged here
            optimizer.step()
            total, batches = total + loss.detach().cpu(), batches + 1
        losses.append(hvd.allreduce(total / batches, name="loss").item())

        # Every worker reports; the weights are the same on all, so rank 0 saves them.
        with tempfile.TemporaryDirectory() as directory:
            saved = None
            if hvd.rank() == 0:
                torch.save({"model": model.state_dict(), "epoch": epoch, "losses": losses},
                           os.path.join(directory, "model.pt"))
                saved = Checkpoint.from_directory(directory)
            train.report({"loss": losses[-1], "first_loss": losses[0], "epoch": epoch,
                          "workers": hvd.size()}, checkpoint=saved)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--use-gpu", action="store_true")
    parser.add_argument("--storage", help="directory for checkpoints (~/ray_results); one that "
                                          "all nodes share, on a cluster")
    args = parser.parse_args()

    trainer = HorovodTrainer(
        train_loop,
        train_loop_config={"lr": 0.1, "epochs": args.epochs},
        horovod_config=HorovodConfig(timeout_s=120),
        scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu),
        run_config=RunConfig(storage_path=args.storage,
                             failure_config=FailureConfig(max_failures=2)),
        datasets={"train": ray.data.from_items([{"x": x / 256, "y": x / 256 + 1}
                                                for x in range(256)])})
    result = trainer.fit()

    metrics = result.metrics
    with result.checkpoint.as_directory() as directory:
        saved = torch.load(os.path.join(directory, "model.pt"), weights_only=True)
    assert saved["epoch"] == args.epochs - 1 and metrics["loss"] < metrics["first_loss"]
    print(f"loss fell from {metrics['first_loss']:.4f} to {metrics['loss']:.4f} on "
          f"{metrics['workers']} workers; the model is in {result.checkpoint.path}")


if __name__ == "__main__":
    main()
