"""RayExecutor with plain functions: a small training on four workers.

    python examples/ray/executor.py                                 # Ray on this machine
    ray submit examples/ray/ray_cluster.yaml examples/ray/executor.py -- --workers 8

Values that workers log arrive here while the training runs.
"""
import argparse

import ray
import torch

import horovod.torch as hvd
from horovod.ray import RayExecutor, ray_logger


def train(steps, lr):
    """Runs on every worker; what it returns comes back in rank order."""
    hvd.init()
    torch.manual_seed(hvd.rank())                   # every worker has data of its own
    inputs = torch.randn(64, 4)
    targets = inputs.sum(dim=1, keepdim=True)
    model = torch.nn.Linear(4, 1)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=lr),
                                         named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        if hvd.rank() == 0 and step % 10 == 0:
            ray_logger.log({"step": step, "loss": loss.item()})
    return hvd.allreduce(loss.detach(), name="loss").item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()

    # On a cluster this joins it; alone it starts a Ray with a CPU for each worker.
    try:
        ray.init(address="auto", ignore_reinit_error=True)
    except ConnectionError:
        ray.init(address="local", num_cpus=arguments.workers)

    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30),
                           num_workers=arguments.workers)
    executor.start()
    losses = executor.run(train, args=[arguments.steps], kwargs={"lr": 0.1},
                          callbacks=[lambda value: print("logged", value)])
    executor.shutdown()
    print(f"mean loss after {arguments.steps} steps: {losses[0]:.6f}, "
          f"the same on all workers: {len(set(losses)) == 1}")


if __name__ == "__main__":
    main()
