"""Fabric: the user's own loop."""
import importlib

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from lightning_support import (alone, case, close, loader, net, package, raises, same,
                               shared_directory, weights)


def fabric(name="lightning.fabric", **options):
    settings = dict(accelerator="cpu", strategy="horovod")
    settings.update(options)
    result = importlib.import_module(name).Fabric(**settings)
    result.launch()
    return result


def sgd(p):
    return torch.optim.SGD(p, lr=0.1, momentum=0.9)


def trained(f, window=1, clip=None):
    inner = net()
    model, optimizer = f.setup(inner, sgd(inner.parameters()))
    batches = list(f.setup_dataloaders(loader(), use_distributed_sampler=False))
    for k, (x, y) in enumerate(batches):
        last = (k + 1) % window == 0 or k + 1 == len(batches)
        with f.no_backward_sync(model, enabled=not last):
            f.backward(F.cross_entropy(model(x), y) / window)
        if last:
            if clip is not None:
                f.clip_gradients(model, optimizer, max_norm=clip)
            optimizer.step()
            optimizer.zero_grad()
    same(weights(inner))
    return inner, model, optimizer


@case
def loops_equal_a_single_process():
    for name in ("lightning.fabric", "lightning_fabric"):
        f = fabric(name)
        assert (f.world_size, f.global_rank, f.is_global_zero) == \
            (2, hvd.rank(), hvd.rank() == 0)
        close(weights(trained(f)[0]), weights(alone()))
    close(weights(trained(fabric(), window=3)[0]), weights(alone(window=3)))
    close(weights(trained(fabric(), clip=0.3)[0]), weights(alone(clip=0.3)))
    close(weights(trained(fabric(), 2, 0.3)[0]), weights(alone(window=2, clip=0.3)))


@case
def weights_start_equal():
    f = fabric()
    torch.manual_seed(hvd.rank())
    inner = torch.nn.Linear(3, 2)
    f.setup(inner)
    same(weights(inner))


@case
def two_optimizers():
    f = fabric()
    torch.manual_seed(1)
    a, b = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    start = weights(b).clone()
    model_a, one = f.setup(a, torch.optim.SGD(a.parameters(), lr=0.1))
    model_b, two = f.setup(b, torch.optim.Adam(b.parameters(), lr=0.1))
    for x, y in loader():
        one.zero_grad()
        f.backward(F.cross_entropy(model_a(x), y))
        one.step()
    close(weights(b), start, 0, 0)
    for x, y in loader():
        two.zero_grad()
        f.backward(F.cross_entropy(model_b(x), y))
        two.step()
    same(weights(a), weights(b))
    assert one.param_groups[0]["lr"] == 0.1                     # not scaled here


@case
def save_and_load():
    f = fabric()
    inner, model, optimizer = trained(f)
    with shared_directory() as directory:
        path = f"{directory}/state.ckpt"
        f.save(path, {"model": model, "optimizer": optimizer, "step": 4})
        f.barrier()
        other = net()
        model, optimizer = f.setup(other, sgd(other.parameters()))
        state = {"model": model, "optimizer": optimizer, "step": 0}
        f.load(path, state, weights_only=False)
        assert state["step"] == 4
        close(weights(other), weights(inner), 0, 0)


@case
def collectives():
    f = fabric()
    r = hvd.rank()
    assert f.all_gather(torch.tensor(r)).tolist() == [0, 1]
    assert f.all_gather({"x": torch.ones(2) * r})["x"].shape == (2, 2)
    assert f.all_reduce(torch.tensor(r + 1.0)).item() == 1.5
    assert f.all_reduce(torch.tensor(r + 1.0), reduce_op="sum").item() == 3
    assert f.broadcast("zero" if r == 0 else None) == "zero"
    f.barrier()
    data = torch.utils.data.TensorDataset(torch.arange(8))
    rows = [b[0].tolist() for b in f.setup_dataloaders(torch.utils.data.DataLoader(data))]
    assert sorted(sum(hvd.allgather_object([i for row in rows for i in row]), [])) == \
        list(range(8))


@case
def precisions_and_options():
    for options in (dict(precision="bf16-mixed"), dict(precision="16-true"),
                    dict(strategy="horovod_fp16"), dict(strategy="horovod_adasum")):
        f = fabric(**options)
        inner = net()
        model, optimizer = f.setup(inner, sgd(inner.parameters()))
        for x, y in loader():
            optimizer.zero_grad()
            f.backward(F.cross_entropy(model(x).float(), y))
            optimizer.step()
        same(weights(inner))
    error = package().utilities.exceptions.MisconfigurationException
    raises(error, fabric, num_nodes=2)
