"""A worker of bench/recovery: an elastic training that notes the end of every step."""
import os
import sys
import time

import torch

import horovod.torch as hvd


def main():
    hvd.init()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(500, 500) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    batch, turns = torch.randn(8, 500), [0]
    journal = os.open(os.path.join(sys.argv[1], "journal"), os.O_WRONLY)
    slow = os.open(os.path.join(sys.argv[1], "slow"), os.O_RDONLY)

    @hvd.elastic.run
    def train(state):
        turns[0] += 1
        while True:
            optimizer.zero_grad()
            model(batch).pow(2).mean().backward()
            optimizer.step()
            line = f"step {time.monotonic()} {os.getpid()} {turns[0]} {hvd.size()}\n"
            os.write(journal, line.encode())
            if os.pread(slow, 1, 0) == b"\1":
                time.sleep(0.02)
            state.batch += 1
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, batch=0))


main()
