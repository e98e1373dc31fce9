"""An elastic training on Ray: kill its workers and watch, or add nodes.

    python examples/ray/elastic.py                              # Ray on this machine
    ray submit examples/ray/ray_cluster.yaml examples/ray/elastic.py

Every worker says its pid.  Kill one (kill -9 PID): the others go on from the last commit, and a new
one joins them.  On a cluster, add a node (ray start --address=...) or take one away.
"""
import argparse
import os
import time

import ray
import torch

import horovod.torch as hvd
from horovod.ray import RayExecutor


def train(steps, pause):
    """Runs on every worker, from its beginning; ``loop`` again after every change."""
    hvd.init()
    torch.manual_seed(1)
    inputs = torch.randn(512, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05),
                                         named_parameters=model.named_parameters())

    @hvd.elastic.run
    def loop(state):
        print(f"rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}, from step {state.step}",
              flush=True)
        while state.step < steps:
            part = slice(hvd.rank(), None, hvd.size())      # this rank's samples
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs[part]), targets[part])
            loss.backward()
            optimizer.step()
            state.loss = loss.item()
            state.step += 1
            state.commit()                                  # here others may come and go
            time.sleep(pause)

    state = hvd.elastic.TorchState(model, optimizer, step=0, loss=0.0)
    loop(state)
    return hvd.size(), state.loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--min-workers", type=int, default=1)
    parser.add_argument("--max-workers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pause", type=float, default=0.1, help="so that there is time to kill")
    arguments = parser.parse_args()

    # On a cluster this joins it; alone it starts a Ray with a CPU for each worker.
    try:
        ray.init(address="auto", ignore_reinit_error=True)
    except ConnectionError:
        ray.init(address="local", num_cpus=arguments.max_workers)

    executor = RayExecutor(RayExecutor.create_settings(), min_workers=arguments.min_workers,
                           max_workers=arguments.max_workers)
    executor.start()
    results = executor.run(train, args=[arguments.steps, arguments.pause])
    executor.shutdown()
    for size, loss in results:
        print(f"finished among {size} workers, loss {loss:.6f}")


if __name__ == "__main__":
    main()
