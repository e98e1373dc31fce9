#!/usr/bin/env python3
"""One rank of the benchmark of training steps: what does data parallelism add to a step?

    step.py --system plain|gloo|hvd --board FILE [--out FILE] [--models a,b,c,d] [--secs S]

plain  every rank trains alone, all at the same time: no communication, no library started (the
       contention for cores and memory is the same as in the distributed runs)
gloo   DistributedDataParallel over gloo
hvd    horovod.torch.DistributedOptimizer

A block is a few steps between two barriers; time per step = (latest end - latest start) / steps.
In the distributed runs blocks of distributed steps alternate with blocks of plain steps of a second
copy of the model, so that each row carries two times taken under the same conditions: step_ms, and
beside_ms (plain steps in the same processes, next to an initialised library).
ok: the parameters of all ranks are bit for bit the same at the end, and they have moved.
"""
import time

import torch
import torch.nn as nn

from common import System, emit, rank_arguments

BATCH = 32


class Scales(nn.Module):
    """200 tensors of 1000 parameters."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(1000)) for _ in range(200)])

    def forward(self, x):
        for w in self.weights:
            x = x * w
        return x


class Table(nn.Module):
    """One tensor of 40 million parameters, of which a step touches few; its gradient is dense."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(40000, 1000)

    def forward(self, i):
        return self.rows(i).mean(1)


def deep():
    return nn.Sequential(*(layer for _ in range(20) for layer in (nn.Linear(500, 500), nn.ReLU())))


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 10))


MODELS = {     # letter: (words, builder, input, width of the target)
    "a": ("MLP, 20 layers, 5.0 M", deep, lambda: torch.randn(BATCH, 500), 500),
    "b": ("200 tensors of 1000", Scales, lambda: torch.randn(BATCH, 1000), 1000),
    "c": ("CNN, 32x32 images", convolutions, lambda: torch.randn(BATCH, 3, 32, 32), 10),
    "d": ("one tensor, 40 M", Table, lambda: torch.randint(0, 40000, (BATCH, 8)), 1000),
}


def trainer(model, optimizer, x, y):
    loss = nn.MSELoss()

    def step():
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return step


def distributed(s, model, letter):
    """(model to call, optimizer)"""
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    if s.kind == "gloo":
        from torch.nn.parallel import DistributedDataParallel
        return DistributedDataParallel(model, gradient_as_bucket_view=True), sgd
    names = [(f"{letter}.{n}", p) for n, p in model.named_parameters()]
    s.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, s.hvd.DistributedOptimizer(sgd, named_parameters=names)


class Training:
    """The steps to time, by name; the distributed model, if there is one."""

    def __init__(self, s, letter):
        self.words, build, inputs, width = MODELS[letter]
        torch.manual_seed(1000 + s.rank)         # different data on every rank
        x, y = inputs(), torch.randn(BATCH, width)
        self.steps, self.model = {}, None
        if s.kind != "plain":
            torch.manual_seed(7)
            self.model = build()
            self.first = self.fingerprint()
            model, optimizer = distributed(s, self.model, letter)
            self.steps["step"] = trainer(model, optimizer, x, y)
        torch.manual_seed(7)
        alone = build()
        self.parameters = sum(p.numel() for p in alone.parameters())
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.01)
        self.steps["beside" if self.steps else "step"] = trainer(alone, optimizer, x, y)

    def fingerprint(self):
        """Two sums over the bits of all parameters."""
        flat = torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])
        bits = flat.view(torch.int32).to(torch.int64)
        place = torch.arange(1, bits.numel() + 1)
        return [int(bits.sum()), int((bits * place % 1000003).sum())]


def plan(s, training, secs):
    """(steps of a block, blocks): about a tenth of the time a block; rank 0 decides."""
    for step in training.steps.values():
        s.board.barrier()
        for _ in range(3):
            step()
    s.board.barrier()
    start = time.monotonic_ns()
    for step in training.steps.values():
        step(), step()
    count = len(training.steps)
    each = (time.monotonic_ns() - start) * 1e-9 / (2 * count)
    block = s.board.agree(max(1, min(20, int(secs / 10 / each))))
    return block, s.board.agree(max(6, min(60, int(secs / each / block / count))))


def take_blocks(s, training, block, blocks, secs):
    """Starts and ends of the blocks, by name of the step."""
    board, clock = s.board, time.monotonic_ns
    times = {name: ([], []) for name in training.steps}
    limit = clock() + int(4 * secs * 1e9)
    for i in range(blocks):
        for name, step in training.steps.items():
            if s.rank == 0:
                board.words[board.stop] = i >= 3 and clock() > limit
            board.barrier()
            if board.words[board.stop]:
                return times
            start = clock()
            for _ in range(block):
                step()
            times[name][0].append(start), times[name][1].append(clock())
    return times


def agree_on_parameters(s, training):
    if training.model is None:
        return True
    now = training.fingerprint()
    s.board.publish([*now, int(now != training.first)])
    found = [s.board.stamps(r, 3) for r in range(s.size)]
    s.board.barrier()
    return all(x == found[0] for x in found) and found[0][2] == 1


def measure(s, letter, secs):
    training = Training(s, letter)
    block, blocks = plan(s, training, secs)
    times = take_blocks(s, training, block, blocks, secs)
    count = min(len(starts) for starts, _ in times.values())
    row = dict(model=letter, words=training.words, ranks=s.size, block=block, blocks=count,
               parameters=training.parameters)
    for name, (starts, ends) in times.items():
        s.board.publish(starts[:count] + ends[:count])
        spans = sorted(x / block * 1e3 for x in s.board.spans(count))
        row[f"{name}_ms"] = round(spans[count // 2], 4)
        row[f"{name}_floor_ms"] = round(spans[0], 4)
        s.board.barrier()
    row["ok"] = agree_on_parameters(s, training)
    return row


def main():
    p = rank_arguments(2.0, "model")
    p.add_argument("--models", default="a,b,c,d")
    a = p.parse_args()
    torch.set_num_threads(1)
    s = System(a.system, a.board).init()
    s.board.barrier()
    for letter in a.models.split(","):
        row = measure(s, letter, a.secs)
        if s.rank == 0:
            emit(a.out, **row)
    s.board.barrier()
    s.done()


if __name__ == "__main__":
    main()
