"""Training by several ranks gives the weights of one process on the whole batch, and the same
bits in every run."""
import hashlib
import warnings

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from cases import case, close, equal, raises, same_on_all_ranks
from horovod.common.util import env

ROWS = 4            # of one rank


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 8),
                               torch.nn.Tanh(), torch.nn.Linear(8, 4))


def batch(step):
    """The batch of all ranks, and this rank's part of it."""
    g = torch.Generator().manual_seed(step)
    n, r = hvd.size(), hvd.rank()
    x = torch.randn(n * ROWS, 10, generator=g)
    y = torch.randint(0, 4, (n * ROWS,), generator=g)
    mine = slice(r * ROWS, (r + 1) * ROWS)
    return (x, y), (x[mine], y[mine])


def compare(kind, kwargs, loop, rtol=1e-4, atol=1e-5, **options):
    """Runs the loop with all ranks and alone, and compares the weights."""
    models = []
    for distributed in (True, False):
        model = net()
        optimizer = kind(model.parameters(), **kwargs)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), **options)
        loop(model, optimizer, lambda step: batch(step)[0 if not distributed else 1])
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        close(a, b, rtol=rtol, atol=atol)
    same_on_all_ranks(*models[0].parameters())


def plain_loop(model, optimizer, get):
    for step in range(6):
        x, y = get(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@case()
def sgd_and_adam():
    compare(torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01), plain_loop)
    compare(torch.optim.Adam, dict(lr=0.01), plain_loop, rtol=1e-3, atol=1e-4)
    compare(torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), plain_loop, rtol=1e-3,
            atol=1e-4)
    compare(torch.optim.SGD, dict(lr=0.1), plain_loop, groups=2)


@case(2, 3)
def accumulated():
    """Windows of 3 batches, the last of an epoch is shorter."""
    def loop(model, optimizer, get):
        for epoch in range(2):
            optimizer.zero_grad()
            for step in range(5):
                x, y = get(10 * epoch + step)
                F.cross_entropy(model(x), y).backward()
                if step == 2 or step == 4:
                    optimizer.step()
                    optimizer.zero_grad()
    compare(torch.optim.SGD, dict(lr=0.05, momentum=0.9), loop, backward_passes_per_step=3)


@case(2, 3)
def clipped():
    """As documented, with synchronize; and the loop of plain PyTorch as it is."""
    def documented(model, optimizer, get):
        for step in range(5):
            x, y = get(step)
            optimizer.zero_grad()
            (10 * F.cross_entropy(model(x), y)).backward()
            if hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if hasattr(optimizer, "skip_synchronize"):
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()

    def plain(model, optimizer, get):
        for step in range(5):
            x, y = get(step)
            optimizer.zero_grad()
            (10 * F.cross_entropy(model(x), y)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    compare(torch.optim.SGD, dict(lr=0.1, momentum=0.9), documented)
    compare(torch.optim.SGD, dict(lr=0.1, momentum=0.9), plain)


@case(2, 3)
def mixed_precision():
    def loop(model, optimizer, get):
        for step in range(5):
            x, y = get(step)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
    compare(torch.optim.SGD, dict(lr=0.05), loop, rtol=0.05, atol=0.01)


@case(2, 3)
def gradient_scaler():
    """Also when a step is skipped because of an overflow on one rank only."""
    def loop(model, optimizer, get):
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        for step in range(6):
            x, y = get(step)
            if step == 3:
                x = x.clone()
                x[0] = float("inf")
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            scaler.step(optimizer)
            scaler.update()
    compare(torch.optim.SGD, dict(lr=0.05), loop)


@case(2, 3)
def unused_parameters():
    """Parameters that only some ranks use in a step."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.parts = torch.nn.ModuleList([torch.nn.Linear(10, 4) for _ in range(4)])

        def forward(self, x, part):
            return self.parts[part](x)
    models = []
    for distributed in (True, False):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        for step in range(4):
            optimizer.zero_grad()
            if distributed:
                x, y = batch(step)[1]
                F.cross_entropy(model(x, (hvd.rank() + step) % 4), y).backward()
            else:
                (x, y), n = batch(step)[0], hvd.size()
                losses = [F.cross_entropy(model(x[r * ROWS:(r + 1) * ROWS], (r + step) % 4),
                                          y[r * ROWS:(r + 1) * ROWS]) for r in range(n)]
                (sum(losses) / n).backward()
            optimizer.step()
        models.append(model)
    for a, b in zip(models[0].parameters(), models[1].parameters()):
        close(a, b, rtol=1e-4, atol=1e-5)


@case(2, 3)
def adversarial():
    """Two optimizers, one backward each.  The gradients that the generator's pass leaves in
    the discriminator are not wanted: they do not come into being, or they are dropped."""
    results = []
    for distributed, freeze in ((True, True), (True, False), (False, True)):
        torch.manual_seed(0)
        g, d = torch.nn.Linear(10, 6), torch.nn.Linear(6, 1)
        opt_g = torch.optim.Adam(g.parameters(), lr=0.01)
        opt_d = torch.optim.Adam(d.parameters(), lr=0.01)
        if distributed:
            opt_g = hvd.DistributedOptimizer(opt_g, [("g." + n, p)
                                                     for n, p in g.named_parameters()])
            opt_d = hvd.DistributedOptimizer(opt_d, [("d." + n, p)
                                                     for n, p in d.named_parameters()])
        for step in range(4):
            x, _ = batch(step)[1 if distributed else 0]
            opt_d.zero_grad()
            (d(g(x).detach()).mean() - d(x[:, :6]).pow(2).mean()).backward()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                opt_d.step()
            opt_g.zero_grad()
            d.requires_grad_(not freeze)
            (-d(g(x)).mean()).backward()
            opt_g.step()
            d.requires_grad_(True)
            if not freeze:
                assert "requires_grad_(False)" in str(raises(AssertionError, opt_d.zero_grad))
                opt_d.synchronize()
        results.append(list(g.parameters()) + list(d.parameters()))
    for a, b, c in zip(*results):
        close(a, c, rtol=1e-3, atol=1e-4)
        close(b, c, rtol=1e-3, atol=1e-4)


@case(2)
def compiled():
    """torch.compile runs our operations between its graphs, without a word."""
    def loop(model, optimizer, get):
        forward = torch.compile(model, backend="eager")

        @torch.compile(backend="eager")
        def mean(x):
            return hvd.allreduce(x * 2, name="mean") / (2 * hvd.size()) * hvd.size()

        for step in range(2):
            x, y = get(step)
            optimizer.zero_grad()
            F.cross_entropy(forward(x), y).backward()
            optimizer.step()
            equal(mean(torch.full((2,), 3.0)), torch.full((2,), 3.0))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compare(torch.optim.SGD, {"lr": 0.1}, loop)


def digest(model):
    text = b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(text).hexdigest()


def trained(**options):
    model = net()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1,
                                                         momentum=0.9),
                                         model.named_parameters(), **options)
    plain_loop(model, optimizer, lambda step: batch(step)[1])
    return digest(model)


@case(2, 3, 4)
def same_bits_in_every_run():
    first = trained()
    assert trained() == first
    assert trained(groups=2) == first
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    assert trained() == first
    assert set(hvd.allgather_object(first, name="digests")) == {first}


def digest_here():
    """The digest of a training and of many small operations in this environment."""
    hvd.init()
    result = trained()
    xs = [torch.randn(1000 + 7 * i, generator=torch.Generator().manual_seed(i + hvd.rank()))
          for i in range(30)]
    handles = [hvd.allreduce_async_(x, name=f"b.{i}") for i, x in enumerate(xs)]
    for handle in handles:
        hvd.synchronize(handle)
    result += hashlib.sha256(b"".join(x.cpu().numpy().tobytes() for x in xs)).hexdigest()
    hvd.barrier()
    hvd.shutdown()
    return result


@case(2, 3, started=False)
def same_bits_with_and_without_fusion():
    """The results do not depend on batching, the cache, or the window."""
    digests = {}
    for name, value in (("FUSION_THRESHOLD", None), ("FUSION_THRESHOLD", "0"),
                        ("FUSION_THRESHOLD", "8192"), ("CACHE_CAPACITY", "0"),
                        ("CYCLE_TIME", "0"), ("SHM_DISABLE", "1"), ("CMA_DISABLE", "1")):
        with env(**{f"HOROVOD_{name}": value}):
            digests[name, value] = digest_here()
    assert len(set(digests.values())) == 1, digests
