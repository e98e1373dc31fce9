"""A loop of one's own with Lightning Fabric, gradients accumulated over two batches.

    horovodrun -np 2 python fabric.py
"""
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(strategy="horovod", accelerator="cpu")
fabric.launch()

x = torch.randn(512, 8, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True))

model = torch.nn.Linear(8, 2)               # rank 0's weights are everybody's after setup
model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.5))

for epoch in range(4):
    for i, (batch, labels) in enumerate(loader):
        with fabric.no_backward_sync(model, enabled=i % 2 == 0):
            fabric.backward(F.cross_entropy(model(batch), labels) / 2)
        if i % 2 == 1:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()

right = (model(x).argmax(1) == data.tensors[1]).float().mean()
fabric.print(f"{fabric.world_size} ranks, {fabric.all_reduce(right):.0%} right")
