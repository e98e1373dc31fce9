"""Process sets: two models, trained at the same time by two halves of the job.

    horovodrun -np 4 python process_sets.py

Even ranks train one model and odd ranks another; the two groups do not wait for each other.
At the end all ranks compare how well the models do.
"""
import torch
import torch.nn as nn

import horovod.torch as hvd


def main():
    hvd.init(process_sets="dynamic")
    if hvd.size() < 2:
        raise SystemExit("start this with at least two ranks: horovodrun -np 4 ...")
    even = hvd.add_process_set(range(0, hvd.size(), 2))     # every rank adds both sets
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    mine, name = (even, "even") if even.included() else (odd, "odd")

    torch.manual_seed(hvd.rank())
    model = nn.Linear(8, 1) if mine is even else nn.Sequential(nn.Linear(8, 16), nn.Tanh(),
                                                               nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         process_set=mine)
    # The root is a rank of the job, also within a set.
    hvd.broadcast_parameters(model.state_dict(), root_rank=mine.ranks[0], process_set=mine)

    steps = 60 if mine is even else 90          # the groups are free to differ
    for _ in range(steps):
        x = torch.randn(32, 8)
        y = x[:, :1] * 2 - x[:, 1:2].abs()
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()

    loss = hvd.allreduce(loss.detach(), name="loss", process_set=mine)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).unsqueeze(0)
    everybody = hvd.allgather(weights, process_set=mine)
    assert bool((everybody == weights).all()), "the ranks of a set hold different weights"
    results = hvd.allgather_object((name, mine.size(), loss.item()))
    if hvd.rank() == 0:
        for name, size, value in sorted(set(results)):
            print(f"{name} ranks: {size} of {hvd.size()}, loss {value:.3f}")
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


if __name__ == "__main__":
    main()
