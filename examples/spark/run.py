"""A training function in the tasks of a Spark job.

    python run.py --processes 2
"""
import argparse

from pyspark.sql import SparkSession

import horovod.spark


def train(steps):
    """Every process fits the same line to points of its own."""
    import torch
    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        x = torch.rand(32, 1)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return hvd.rank(), model.weight.item(), model.bias.item(), loss.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    session = SparkSession.builder.master(options.master).getOrCreate()
    results = horovod.spark.run(train, args=(options.steps,), num_proc=options.processes)
    for rank, weight, bias, loss in results:
        print(f"rank {rank}: y = {weight:.2f} x + {bias:.2f}, loss {loss:.5f}")
    print(f"the same on all ranks: {len({r[1:3] for r in results}) == 1}")
