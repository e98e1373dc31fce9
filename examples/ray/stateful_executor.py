"""RayExecutor with an object that keeps its state on the workers.

    python examples/ray/stateful_executor.py

Each worker makes one object when the executor starts; calls work on it until shutdown.
"""
import argparse

import ray
import torch

import horovod.torch as hvd
from horovod.ray import RayExecutor


class Trainer:
    def __init__(self, lr):
        hvd.init()                                  # meets the other workers
        torch.manual_seed(hvd.rank())
        self.inputs = torch.randn(64, 4)
        self.targets = self.inputs.sum(dim=1, keepdim=True)
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=lr),
            named_parameters=self.model.named_parameters())
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def train(self, steps):
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(self.model(self.inputs), self.targets)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    def weights(self):
        return {name: value.detach() for name, value in self.model.named_parameters()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    try:
        ray.init(address="auto", ignore_reinit_error=True)
    except ConnectionError:
        ray.init(address="local", num_cpus=arguments.workers)

    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30),
                           num_workers=arguments.workers)
    executor.start(executable_cls=Trainer, executable_kwargs={"lr": 0.1})
    for number in range(arguments.rounds):
        losses = executor.execute(lambda trainer: trainer.train(steps=20))
        print(f"round {number}: loss by rank {[round(loss, 5) for loss in losses]}")
    weights = executor.execute(lambda trainer: trainer.weights())
    same = all(torch.equal(weights[0][name], other[name])
               for other in weights for name in other)
    print(f"rank 0 has {executor.execute_single(lambda trainer: hvd.size())} workers around "
          f"it; all hold the same weights: {same}")
    executor.shutdown()


if __name__ == "__main__":
    main()
