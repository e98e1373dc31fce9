"""Mixed precision: forward in bfloat16, gradients on the wire in 16 bits.

    horovodrun -np 2 python mixed_precision.py

Autocast chooses bfloat16 for what gains from it; weights and optimizer stay in float32.
The GradScaler is not needed for bfloat16 and is here to show that it works: it looks at
gradients that are averaged already, so that all ranks decide alike.
"""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

import horovod.torch as hvd


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(0)
    teacher = nn.Linear(32, 4)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(),
                                         compression=hvd.Compression.bf16)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    torch.manual_seed(1 + hvd.rank())
    first = last = 0.0
    for step in range(args.steps):
        x = torch.randn(64, 32)
        target = teacher(x).argmax(1)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).float(), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if step % 10 == 0 or step == args.steps - 1:
            last = hvd.allreduce(loss.detach(), name="loss").item()
            first = first or last
            if hvd.rank() == 0:
                print(f"step {step + 1:3d}  loss {last:.3f}", flush=True)

    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    everybody = hvd.allgather(weights.unsqueeze(0))
    assert bool((everybody == weights).all()), "the ranks hold different weights"
    assert last < first, "the model has learned nothing"
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, equal weights, loss {first:.3f} -> {last:.3f}")


if __name__ == "__main__":
    main()
