"""Manual optimisation: several optimizers, in every order."""
import torch
import torch.nn.functional as F

import horovod.torch as hvd
from lightning_support import (CLASSES, FEATURES, case, close, loader, package, same, trainer,
                               weights, whole_batches)


def two_nets():
    torch.manual_seed(5)
    return torch.nn.Linear(FEATURES, CLASSES), torch.nn.Linear(FEATURES, CLASSES)


def make(step, optimizers=None, **options):
    """A module of two nets, a and b, whose training step is the function."""
    class Pair(package().LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.a, self.b = two_nets()

        def training_step(self, batch, batch_idx):
            step(self, batch, batch_idx)

        def configure_optimizers(self):
            if optimizers is not None:
                return optimizers(self)
            return [torch.optim.SGD(self.a.parameters(), lr=0.1),
                    torch.optim.SGD(self.b.parameters(), lr=0.2)]

        def loss(self, part, batch):
            return F.cross_entropy(getattr(self, part)(batch[0]), batch[1])
    return Pair()


def run(step, optimizers=None, **options):
    module = make(step, optimizers)
    trainer(**options).fit(module, loader())
    same(weights(module))
    return module


def single(loop):
    """The same by hand: loop(a, b, optimizer of a, of b, batch)."""
    a, b = two_nets()
    ones = torch.optim.SGD(a.parameters(), lr=0.1), torch.optim.SGD(b.parameters(), lr=0.2)
    for batch in whole_batches():
        loop(a, b, *ones, batch)
    return torch.cat([weights(a), weights(b)])


def in_turn(a, b, one, two, batch):
    for net, optimizer in ((a, one), (b, two)):
        optimizer.zero_grad()
        F.cross_entropy(net(batch[0]), batch[1]).backward()
        optimizer.step()


@case
def two_optimizers_in_turn():
    def step(self, batch, batch_idx):
        for part, optimizer in zip("ab", self.optimizers()):
            optimizer.zero_grad()
            self.manual_backward(self.loss(part, batch))
            optimizer.step()
    close(weights(run(step)), single(in_turn))


@case
def toggled():
    def step(self, batch, batch_idx):
        for part, optimizer in zip("ab", self.optimizers()):
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(self.loss(part, batch))
            optimizer.step()
            self.untoggle_optimizer(optimizer)
    close(weights(run(step)), single(in_turn))


@case
def closures():
    def step(self, batch, batch_idx):
        for part, optimizer in zip("ab", self.optimizers()):
            def closure():
                optimizer.zero_grad()
                loss = self.loss(part, batch)
                self.manual_backward(loss)
                return loss
            with optimizer.toggle_model():
                optimizer.step(closure=closure)
    close(weights(run(step)), single(in_turn))


@case
def two_backwards_then_two_steps():
    def step(self, batch, batch_idx):
        one, two = self.optimizers()
        one.zero_grad()
        two.zero_grad()
        self.manual_backward(self.loss("a", batch))
        self.manual_backward(self.loss("b", batch))
        one.step()
        two.step()
    close(weights(run(step)), single(in_turn))


@case
def two_backwards_of_the_same_parameters():
    """The second adds to a gradient that is reduced already."""
    def step(self, batch, batch_idx):
        one, two = self.optimizers()
        one.zero_grad()
        two.zero_grad()
        self.manual_backward(self.loss("a", batch) + self.loss("b", batch))
        self.manual_backward(self.loss("a", batch) * 2)
        one.step()
        two.step()

    def loop(a, b, one, two, batch):
        one.zero_grad()
        two.zero_grad()
        F.cross_entropy(a(batch[0]), batch[1]).mul(3).backward()
        F.cross_entropy(b(batch[0]), batch[1]).backward()
        one.step()
        two.step()
    close(weights(run(step)), single(loop))


@case
def one_rank_touches_more():
    """Only rank 1 trains b: rank 0 takes part with zeros."""
    def step(self, batch, batch_idx):
        one, two = self.optimizers()
        one.zero_grad()
        two.zero_grad()
        loss = self.loss("a", batch)
        if hvd.rank() == 1:
            loss = loss + self.loss("b", batch)
        self.manual_backward(loss)
        one.step()
        two.step()
    module = run(step)
    assert bool((weights(module.b) != weights(two_nets()[1])).any())


@case
def accumulated_by_hand():
    """The first backward of a window stays local."""
    def step(self, batch, batch_idx):
        one, _ = self.optimizers()
        if batch_idx % 2 == 0:
            one.zero_grad()
            with self.trainer.strategy.block_backward_sync():
                self.manual_backward(self.loss("a", batch))
            return
        self.manual_backward(self.loss("a", batch))
        one.step()

    a, _ = two_nets()
    optimizer = torch.optim.SGD(a.parameters(), lr=0.1)
    for k, batch in enumerate(whole_batches()):
        F.cross_entropy(a(batch[0]), batch[1]).backward()
        if k % 2:
            optimizer.step()
            optimizer.zero_grad()
    close(weights(run(step).a), weights(a))


@case
def plain_backward_and_plain_optimizers():
    """loss.backward() and the optimizers themselves: reduced in step at the latest."""
    def step(self, batch, batch_idx):
        for part, optimizer in zip("ab", self.optimizers(use_pl_optimizer=False)):
            optimizer.zero_grad()
            self.loss(part, batch).backward()
            optimizer.step()
    close(weights(run(step)), single(in_turn))


@case
def parameters_of_two_optimizers():
    """Both step the same parameters."""
    def step(self, batch, batch_idx):
        one, two = self.optimizers()
        one.zero_grad()
        self.manual_backward(self.loss("a", batch))
        one.step()
        two.step()

    def optimizers(self):
        return [torch.optim.SGD(self.a.parameters(), lr=0.1),
                torch.optim.SGD(self.parameters(), lr=0.05)]

    a, _ = two_nets()
    optimizer = torch.optim.SGD(a.parameters(), lr=0.15)
    for batch in whole_batches():
        optimizer.zero_grad()
        F.cross_entropy(a(batch[0]), batch[1]).backward()
        optimizer.step()
    close(weights(run(step, optimizers).a), weights(a))
