"""The learning rate is scaled by the number of ranks, once, in every place it is kept."""
import torch
from torch.optim import lr_scheduler

import horovod.torch as hvd
from lightning_support import (Lines, Net, case, close, loader, shared_directory, strategy,
                               trainer)


def rates(make_scheduler, scale_lr=True, lr=0.1, interval="step", kind=torch.optim.SGD,
          **options):
    """The learning rate of each step, and the lines of the log that speak of it."""
    module, seen = Net(), []

    def configure():
        optimizer = kind(module.parameters(), lr=lr)
        if make_scheduler is None:
            return optimizer
        config = {"scheduler": make_scheduler(optimizer), "interval": interval,
                  "monitor": "val_loss"}
        return {"optimizer": optimizer, "lr_scheduler": config}
    module.configure_optimizers = configure
    module.on_before_optimizer_step = lambda o: seen.append(float(o.param_groups[0]["lr"]))
    run = trainer(max_epochs=2, strategy=strategy(scale_lr=scale_lr), **options)
    with Lines() as lines:
        run.fit(module, loader(), loader())
    return torch.tensor(seen), [n for n in lines if "learning rate scaled" in n]


@case
def on_by_default_with_one_line():
    run = trainer(strategy="horovod")
    assert run.strategy.scale_lr
    seen, lines = rates(None)
    close(seen, torch.full((8,), 0.2))
    assert len(lines) == (1 if hvd.rank() == 0 else 0)
    assert hvd.rank() or "0.1 -> 0.2" in lines[0], lines
    seen, lines = rates(None, scale_lr=False)
    close(seen, torch.full((8,), 0.1))
    assert not lines


@case
def schedules_are_scaled_as_a_whole():
    for make in (lambda o: lr_scheduler.StepLR(o, 2, 0.5),
                 lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
                 lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8),
                 lambda o: lr_scheduler.CyclicLR(o, 0.05, 0.2, step_size_up=3),
                 lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
                 lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
                 lambda o: lr_scheduler.ExponentialLR(o, 0.8),
                 lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.9)]),
                 lambda o: lr_scheduler.SequentialLR(
                     o, [lr_scheduler.LinearLR(o, 0.1, total_iters=4),
                         lr_scheduler.StepLR(o, 1, 0.5)], [4])):
        (scaled, _), (plain, _) = rates(make), rates(make, scale_lr=False)
        close(scaled, 2 * plain)


@case
def the_floor_of_a_plateau_stays():
    def make(optimizer):
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=1e-9, patience=0, threshold=9,
                                              min_lr=0.07)
    seen, _ = rates(make, interval="epoch", lr=0.1)
    close(seen, torch.tensor([0.2] * 4 + [0.07] * 4))


@case
def not_twice_on_resume():
    """A checkpoint holds what was scaled; a fit in pieces has the rates of one in a piece."""
    def configured():
        module = Net()

        def configure():
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            cycle = lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=12)
            return [optimizer], [{"scheduler": cycle, "interval": "step"}]
        module.configure_optimizers = configure
        return module

    def train(epochs, **options):
        module, seen = configured(), []
        module.on_before_optimizer_step = \
            lambda o: seen.append(float(o.param_groups[0]["lr"]))
        run = trainer(max_epochs=epochs, strategy=strategy(scale_lr=True))
        run.fit(module, loader(), **options)
        return run, seen

    _, whole = train(3)
    with shared_directory() as directory:
        run, first = train(1)
        path = f"{directory}/one.ckpt"
        run.save_checkpoint(path)
        _, rest = train(3, ckpt_path=path, weights_only=False)
    close(torch.tensor(first + rest), torch.tensor(whole))


@case
def not_twice_for_the_same_optimizer():
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.make = lambda p: optimizer
    for _ in range(2):
        run = trainer(strategy=strategy(scale_lr=True))
        run.fit(module, loader())
        assert run.optimizers[0].param_groups[0]["lr"] == 0.2


@case
def several_groups_and_tensors():
    module = Net()

    def configure():
        return torch.optim.SGD([{"params": module.net[0].parameters(), "lr": 0.01},
                                {"params": module.net[2].parameters()}],
                               lr=torch.tensor(0.5), foreach=False)
    module.configure_optimizers = configure
    run = trainer(strategy=strategy(scale_lr=True))
    run.fit(module, loader())
    assert [float(g["lr"]) for g in run.optimizers[0].param_groups] == [0.02, 1.0]
