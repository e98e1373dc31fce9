"""A search for a learning rate: every trial of Ray Tune is a Horovod job of two workers.

    python examples/ray/tune.py

The workers run inside the placement group of their trial; rank 0's losses go to Tune while the
trial runs.
"""
import argparse
import tempfile

import ray
from ray import tune

from horovod.ray import RayExecutor, ray_logger


def train(config):
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=config["lr"]),
                                         named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(hvd.rank()))
    y = x.sum(dim=1, keepdim=True)
    for step in range(config["steps"]):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            mean = hvd.allreduce(loss.detach(), name="loss").item()
            if hvd.rank() == 0:
                ray_logger.log({"loss": mean, "step": step + 1})
    return hvd.size()


def trial(config):
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_workers=2)
    executor.start()
    try:
        assert executor.run(train, args=[config], callbacks=[tune.report]) == [2, 2]
    finally:
        executor.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()

    folder = tempfile.TemporaryDirectory(prefix="horovod-tune-")
    ray.init(num_cpus=3, include_dashboard=False)
    rates = [0.003 * 10 ** (i / 2) for i in range(args.trials)]
    tuner = tune.Tuner(
        tune.with_resources(trial, tune.PlacementGroupFactory([{"CPU": 1}] * 3)),
        param_space={"lr": tune.grid_search(rates), "steps": args.steps},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(verbose=0, storage_path=folder.name))
    results = tuner.fit()
    assert not results.errors, results.errors
    best = results.get_best_result()
    print(f"{len(results)} trials of 2 ranks; best learning rate {best.config['lr']:.3f}, "
          f"loss {best.metrics['loss']:.4f}")
    ray.shutdown()
    folder.cleanup()


if __name__ == "__main__":
    main()
