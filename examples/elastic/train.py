"""A training that survives: kill its workers and watch.

    horovodrun -np 3 --min-np 1 --restarts-per-slot 100 python examples/elastic/train.py

In another terminal kill one of the processes it names (kill -9 PID), stop it politely
(kill PID), or kill several.  The others go on at once from the last commit; a new worker comes
beside them and joins at a commit.  At the end every sample was seen once in every epoch.
"""
import argparse
import os
import time

import torch

import horovod.torch as hvd

SAMPLES, BATCH = 4800, 12


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=20)
    p.add_argument("--step-seconds", type=float, default=0.05, help="so that there is time to kill")
    args = p.parse_args()

    hvd.init()
    torch.manual_seed(1)
    inputs = torch.randn(SAMPLES, 10)
    targets = inputs @ torch.randn(10, 1)
    dataset = torch.utils.data.TensorDataset(inputs, targets)

    sampler = hvd.elastic.ElasticSampler(dataset)
    loader = torch.utils.data.DataLoader(dataset, batch_size=BATCH, sampler=sampler)
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @hvd.elastic.run
    def train(state):
        print(f"rank {hvd.rank()} of {hvd.size()}, pid {os.getpid()}: "
              f"from epoch {state.epoch}, sample {sampler.processed_num}", flush=True)
        while state.epoch < args.epochs:
            for x, y in loader:
                optimizer.zero_grad()
                loss = (model(x) - y).pow(2).mean()
                loss.backward()
                optimizer.step()
                sampler.record_batch(0, len(x))
                state.samples += len(x) * hvd.size()
                time.sleep(args.step_seconds)
                state.commit()                  # here others may come and go
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()
            if hvd.rank() == 0:
                print(f"epoch {state.epoch}: loss {loss.item():.6f}", flush=True)

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, samples=0)
    train(state)
    if hvd.rank() == 0:
        print(f"{args.epochs} epochs, {state.samples} samples, {SAMPLES} in each epoch", flush=True)


main()
