#!/usr/bin/env python3
"""What state.commit() costs: a model of 40 million parameters, SGD with momentum.

    horovodrun -np 2 python bench/python/commit.py      how long it blocks, beside copy.deepcopy
    taskset -c 0,1 python bench/python/commit.py        one rank: steps with and without commits

In each round every variant has its turn, in an order that rotates; shown are medians and the
median of the rounds' ratios.  One torch thread per rank.
"""
import argparse
import copy
import statistics
import time

import torch

import horovod.torch as hvd


def deep(width, layers):
    return torch.nn.Sequential(*(layer for _ in range(layers) for layer in
                                 (torch.nn.Linear(width, width), torch.nn.ReLU())))


class Bench:
    def __init__(self, args):
        self.model = deep(args.width, args.layers)
        inner = torch.optim.SGD(self.model.parameters(), lr=1e-4, momentum=0.9)
        self.optimizer = hvd.DistributedOptimizer(
            inner, named_parameters=self.model.named_parameters())
        self.batch = torch.randn(args.batch, args.width)
        self.step()
        self.state = hvd.elastic.TorchState(self.model, self.optimizer, batch=0)

    def step(self):
        self.optimizer.zero_grad()
        self.model(self.batch).pow(2).mean().backward()
        self.optimizer.step()

    def commit(self):
        """Seconds that the call blocks."""
        start = time.perf_counter()
        self.state.commit()
        return time.perf_counter() - start

    def deepcopy(self):
        start = time.perf_counter()
        copies = [copy.deepcopy(self.model.state_dict()),
                  copy.deepcopy(self.optimizer.state_dict())]
        seconds = time.perf_counter() - start
        del copies
        return seconds

    def steps(self, count, act):
        start = time.perf_counter()
        for _ in range(count):
            self.step()
            act()
        return (time.perf_counter() - start) / count


def show(title, times, base):
    ratio = statistics.median(t / b for t, b in zip(times, base))
    print(f"{title:28s} {1e3 * statistics.median(times):9.2f} ms   ratio {ratio:6.3f}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--width", type=int, default=2000)
    p.add_argument("--layers", type=int, default=10)
    p.add_argument("--batch", type=int, default=64)
    p.add_argument("--rounds", type=int, default=15)
    args = p.parse_args()
    hvd.init()
    torch.set_num_threads(1)
    bench = Bench(args)
    rows = {"deepcopy": [], "commit": [], "step": [], "step and commit": []}
    turns = {"deepcopy": lambda: bench.steps(1, lambda: rows["deepcopy"].append(bench.deepcopy())),
             "commit": lambda: bench.steps(1, lambda: rows["commit"].append(bench.commit())),
             "step": lambda: rows["step"].append(bench.steps(3, lambda: None)),
             "step and commit": lambda: rows["step and commit"].append(
                 bench.steps(3, bench.state.commit))}
    for _ in range(3):
        bench.steps(1, bench.state.commit)
    names = list(turns)
    for turn in range(args.rounds):
        for name in names[turn % 4:] + names[:turn % 4]:
            hvd.barrier()
            turns[name]()
    if hvd.rank() == 0:
        count = sum(p.numel() for p in bench.model.parameters())
        print(f"{count / 1e6:.1f} M parameters with momentum, {hvd.size()} ranks")
        show("copy.deepcopy blocks", rows["deepcopy"], rows["deepcopy"])
        show("state.commit() blocks", rows["commit"], rows["deepcopy"])
        show("a step", rows["step"], rows["step"])
        show("a step and a commit", rows["step and commit"], rows["step"])


main()
