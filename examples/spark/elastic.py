"""A training that goes on when executors are lost.

    python elastic.py                       # one machine, two executors of their own
    kill -9 $(pgrep -f CoarseGrainedExecutorBackend | head -1)      # meanwhile, elsewhere
"""
import argparse
import time

from pyspark.sql import SparkSession

import horovod.spark


def train(steps, pause):
    """As hvd.elastic asks for it: what must survive is in the state, and committed."""
    import torch
    import horovod.torch as hvd

    hvd.init()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def loop(state):
        while state.step < steps:
            x = torch.rand(32, 1)
            loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            state.commit()
            time.sleep(pause)

    loop(hvd.elastic.TorchState(model, optimizer, step=0))
    return hvd.rank(), hvd.size(), model.weight.item(), model.bias.item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds after each step")
    options = parser.parse_args()
    session = SparkSession.builder.master(options.master).getOrCreate()
    results = horovod.spark.run_elastic(train, args=(options.steps, options.pause), num_proc=2,
                                        min_num_proc=1, max_num_proc=2)
    for rank, size, weight, bias in results:
        print(f"rank {rank} of {size}: y = {weight:.2f} x + {bias:.2f}")
