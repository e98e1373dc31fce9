"""A small image classifier, trained on all ranks.

    horovodrun -np 2 python image_classifier.py

The images are made up on the fly: ten patterns under noise, so nothing is downloaded.  Each
rank trains on its own part of them; the last line shows that all ranks hold the same weights.
"""
import argparse
import hashlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd


def make_images(count, seed):
    """Ten fixed patterns of 16 x 16 pixels, one per class, under noise."""
    patterns = torch.randn(10, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (count,), generator=g)
    return TensorDataset(0.4 * patterns[labels] + torch.randn(count, 1, 16, 16, generator=g),
                         labels)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.fc1 = nn.Linear(16 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def train(model, optimizer, loader):
    """One epoch; the mean loss over all ranks."""
    model.train()
    total = torch.zeros(())
    for images, labels in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()                 # gradients are averaged over the ranks here
        optimizer.step()
        total += loss.detach()
    return hvd.allreduce(total / len(loader), name="loss").item()


def accuracy(model, images):
    """Each rank looks at its share of the images."""
    model.eval()
    x, y = (t[hvd.rank()::hvd.size()] for t in images.tensors)
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    counts = hvd.allreduce(torch.stack([right, torch.tensor(len(y))]), name="right",
                           op=hvd.Sum)
    return counts[0].item() / counts[1].item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32, help="per rank")
    args = parser.parse_args()

    hvd.init()
    torch.manual_seed(hvd.rank())       # different on purpose: the broadcast makes them equal

    model = Net()
    # More ranks, larger global batch: scale the learning rate.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    dataset, test_images = make_images(args.images, seed=1), make_images(512, seed=2)
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        loss = train(model, optimizer, loader)
        speed = len(sampler) * hvd.size() / (time.perf_counter() - start)
        share = accuracy(model, test_images)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {loss:.4f}  accuracy {share:6.1%}  "
                  f"{speed:,.0f} images/s", flush=True)

    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    digests = hvd.allgather_object(hashlib.sha256(weights).hexdigest()[:16])
    assert len(set(digests)) == 1, f"the ranks hold different weights: {digests}"
    if hvd.rank() == 0:
        print(f"all {hvd.size()} ranks hold the same weights, sha256 {digests[0]}")


if __name__ == "__main__":
    main()
