"""The gradients of the operations, and SyncBatchNorm."""
import torch

import horovod.torch as hvd
from cases import case, close, equal, raises


@case()
def of_allreduce():
    n, r = hvd.size(), hvd.rank()
    for op, want in ((hvd.Sum, n), (hvd.Average, 1)):
        x = torch.ones(5, 5, requires_grad=True)
        hvd.allreduce(x, op=op).backward(torch.ones(5, 5))
        equal(x.grad, torch.full((5, 5), float(want)))
    x = torch.ones(4, requires_grad=True)
    hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0).sum().backward()
    close(x.grad, torch.full((4,), 1.5 * n))
    x = torch.full((3,), float(r), requires_grad=True)
    hvd.allreduce(x, op=hvd.Max).sum().backward()
    equal(x.grad, torch.full((3,), float(n) if r == n - 1 else 0.0))
    x = torch.ones(3, requires_grad=True)
    raises(NotImplementedError, hvd.allreduce(x, op=hvd.Product).sum().backward)
    x = torch.full((3,), 2.0, requires_grad=True)
    (first,) = torch.autograd.grad(hvd.allreduce(x * x, op=hvd.Sum).sum(), x,
                                   create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    close(second, torch.full((3,), 2.0 * n))


@case()
def of_groups():
    n = hvd.size()
    xs = [torch.ones(3 + i, requires_grad=True) for i in range(5)]
    for out, x in zip(hvd.grouped_allreduce(xs, op=hvd.Sum), xs):
        out.backward(torch.ones_like(x))
        equal(x.grad, torch.full_like(x, n))
    xs = [torch.ones(3 + i, requires_grad=True) for i in range(3)]
    for out, x in zip(hvd.grouped_allgather(xs), xs):
        out.backward(torch.ones_like(out))
        equal(x.grad, torch.ones_like(x))
    xs = [torch.ones(2 * n, requires_grad=True) for i in range(3)]
    for out, x in zip(hvd.grouped_reducescatter(xs, op=hvd.Sum), xs):
        out.backward(torch.ones_like(out))
        equal(x.grad, torch.full_like(x, n))


@case()
def of_allgather():
    n, r = hvd.size(), hvd.rank()
    rows = [3, 2, 7, 4][:n]
    x = torch.full((rows[r], 3), float(r), requires_grad=True)
    gradient = torch.cat([torch.full((rows[k], 3), float(k)) for k in range(n)])
    hvd.allgather(x).backward(gradient)
    close(x.grad, torch.full((rows[r], 3), float(r)))


@case()
def of_broadcast():
    n, r = hvd.size(), hvd.rank()
    for root in range(n):
        x = torch.ones(4, requires_grad=True)
        hvd.broadcast(x, root).backward(torch.ones(4))
        equal(x.grad, torch.full((4,), float(r == root)))


@case()
def of_alltoall():
    n, r = hvd.size(), hvd.rank()
    x = torch.ones(n * (r + 1) + 2, 3, requires_grad=True)
    out, _ = hvd.alltoall(x, splits=[r + 1] * n)        # two rows are not sent
    out.backward(torch.ones_like(out))
    want = torch.ones_like(x)
    want[-2:] = 0
    equal(x.grad, want)
    x = torch.ones(2 * n, requires_grad=True)
    hvd.alltoall(x).sum().backward()
    equal(x.grad, torch.ones(2 * n))


@case()
def of_reducescatter():
    n = hvd.size()
    for dtype in (torch.float16, torch.float32):
        for op, want in ((hvd.Sum, n), (hvd.Average, 1)):
            x = torch.ones(4 * n + 1, 2, dtype=dtype, requires_grad=True)
            out = hvd.reducescatter(x, op=op, prescale_factor=2.0)
            gradient = torch.ones_like(out)
            out.backward(gradient)
            equal(x.grad, torch.full_like(x, 2.0 * want))
            equal(gradient, torch.ones_like(out))


def _batches(n, shape, seed):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(k + 2, *shape, generator=g) for k in range(n)]


@case()
def sync_batch_norm():
    """Output, running statistics and gradients are those of the concatenated batch."""
    n, r = hvd.size(), hvd.rank()
    for shape, momentum in (((3,), 0.1), ((3, 1), 0.1), ((3, 4, 5), None)):
        parts = _batches(n, shape, seed=len(shape))
        mine = parts[r].clone().requires_grad_()
        layer = hvd.SyncBatchNorm(3, momentum=momentum)
        plain = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm1d,
                 3: torch.nn.BatchNorm2d}[len(shape)](3, momentum=momentum)
        for m in (layer, plain):
            torch.nn.init.constant_(m.weight, 1.5)
        whole = torch.cat(parts).requires_grad_()
        for _ in range(2):
            got, want = layer(mine), plain(whole)
        first = sum(k + 2 for k in range(r))
        close(got, want[first:first + r + 2])
        close(layer.running_mean, plain.running_mean)
        close(layer.running_var, plain.running_var)
        assert layer.num_batches_tracked == plain.num_batches_tracked
        (got * got * got).sum().backward()
        (want * want * want).sum().backward()
        close(mine.grad, whole.grad[first:first + r + 2], rtol=1e-4, atol=1e-4)
        close(hvd.allreduce(layer.weight.grad, op=hvd.Sum), plain.weight.grad, rtol=1e-4,
              atol=1e-4)
        close(hvd.allreduce(layer.bias.grad, op=hvd.Sum), plain.bias.grad, rtol=1e-4,
              atol=1e-4)
        layer.eval()
        plain.eval()
        close(layer(mine), plain(mine))
    raises(ValueError, hvd.SyncBatchNorm(3), torch.ones(3))
    model = hvd.SyncBatchNorm.convert(torch.nn.Sequential(torch.nn.Linear(2, 3),
                                                          torch.nn.BatchNorm1d(3)))
    assert isinstance(model[1], hvd.SyncBatchNorm) and "1.running_mean" in model.state_dict()
