"""What the cases of Lightning share.  A case runs in both ranks of a pair of processes that
stays alive; torch.distributed must not have been used by anybody afterwards.

Samples are dealt out in order, so that batch k of all ranks together is batch k of a single
process with batches of twice the size: ``alone`` trains that by hand.
"""
import contextlib
import functools
import importlib
import logging
import tempfile
import warnings

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from horovod.lightning._common import job

SAMPLES, FEATURES, CLASSES, ROWS = 32, 6, 3, 4      # ROWS: of one rank's batch
registry = []
warnings.filterwarnings("ignore", module="lightning|pytorch_lightning|torch")


def case(function):
    @functools.wraps(function)
    def wrapper():
        hvd.init()
        torch.manual_seed(1234)
        function()
        assert not torch.distributed.is_initialized()
        if not job.broken:
            hvd.barrier()
        hvd.shutdown()
    registry.append(wrapper)
    return wrapper


def package(name="lightning"):
    return importlib.import_module({"lightning": "lightning.pytorch"}.get(name, name))


def points():
    g = torch.Generator().manual_seed(7)
    x = torch.randn(SAMPLES, FEATURES, generator=g)
    return x, torch.randint(0, CLASSES, (SAMPLES,), generator=g)


def loader(rows=ROWS, **options):
    """This rank's batches, in order."""
    data = torch.utils.data.TensorDataset(*points())
    sampler = torch.utils.data.DistributedSampler(data, hvd.size(), hvd.rank(), shuffle=False)
    return torch.utils.data.DataLoader(data, batch_size=rows, sampler=sampler, **options)


def whole_batches(rows=ROWS):
    """The batches of all ranks together."""
    x, y = points()
    n = rows * hvd.size()
    return [(x[i:i + n], y[i:i + n]) for i in range(0, SAMPLES, n)]


def net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.Tanh(),
                               torch.nn.Linear(8, CLASSES))


@functools.lru_cache(None)
def module_class(name="lightning"):
    pl = package(name)

    class Net(pl.LightningModule):
        """A small classifier; ``optimizer`` makes its optimizer from the parameters."""

        def __init__(self, optimizer=None):
            super().__init__()
            self.net = net()
            self.make = optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

        def forward(self, x):
            return self.net(x.to(next(self.parameters()).dtype))

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)

        def test_step(self, batch, batch_idx):
            self.log("test_loss", F.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)

        def predict_step(self, batch, batch_idx):
            return self(batch[0]).argmax(1)

        def configure_optimizers(self):
            return self.make(self.parameters())
    return Net


def Net(optimizer=None, name="lightning"):
    return module_class(name)(optimizer)


def strategy(name="lightning", **options):
    from horovod.lightning import classes
    options.setdefault("scale_lr", False)
    return classes(name).HorovodStrategy(**options)


def trainer(name="lightning", **options):
    """A quiet Trainer on the CPU."""
    settings = dict(accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False,
                    use_distributed_sampler=False, num_sanity_val_steps=0)
    settings.update(options)
    settings.setdefault("strategy", strategy(name))
    return package(name).Trainer(**settings)


def alone(optimizer=None, epochs=1, window=1, clip=None, model=None):
    """The same training in one process, by hand."""
    model = model or net()
    optimizer = (optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)))(
        model.parameters())
    batches = whole_batches()
    for _ in range(epochs):
        for k, (x, y) in enumerate(batches):
            (F.cross_entropy(model(x), y) / window).backward()
            if (k + 1) % window == 0 or k + 1 == len(batches):
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
                optimizer.zero_grad()
    return model


def weights(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def same(*tensors):
    """All ranks hold the same bits."""
    for t in tensors:
        flat = t.detach().contiguous().reshape(-1).view(torch.uint8).unsqueeze(0)
        assert bool((hvd.allgather(flat) == flat).all()), f"ranks differ: {t}"


def close(a, b, rtol=1e-4, atol=1e-5):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def raises(kind, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"did not raise {kind}")


@contextlib.contextmanager
def shared_directory():
    """One temporary directory for all ranks."""
    with contextlib.ExitStack() as stack:
        mine = stack.enter_context(tempfile.TemporaryDirectory()) if hvd.rank() == 0 else None
        yield hvd.broadcast_object(mine, 0, "directory")
        if hvd.is_initialized() and not job.broken:
            hvd.barrier()


class Lines(logging.Handler):
    """Collects what Lightning logs; the copy that was imported last has the logger."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())

    def __enter__(self):
        self.log = importlib.import_module("lightning_utilities.core.rank_zero").log
        self.log.addHandler(self)
        return self.lines

    def __exit__(self, *_):
        self.log.removeHandler(self)
