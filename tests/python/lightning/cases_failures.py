"""What happens to the others when a rank fails, and afterwards."""
import os
import time

import torch

import horovod.torch as hvd
from lightning_support import (Net, case, loader, package, raises, same, shared_directory,
                               strategy, trainer, weights)


def failing(ranks, at=2, where="training_step"):
    module = Net()
    inner = getattr(module, where)

    def broken(*args):
        if hvd.rank() in ranks and args[-1] == at:
            raise ZeroDivisionError("as planned\nsecond line")
        return inner(*args)
    setattr(module, where, broken)
    return module


def works_again():
    module = Net()
    run = trainer()
    run.fit(module, loader(), loader())
    same(weights(module))


@case
def one_rank_fails():
    """The other rank hears who it was, and why, at once; a new fit works."""
    for where in ("training_step", "validation_step"):
        module = failing([1], 2, where)
        run = trainer()
        start = time.monotonic()
        if hvd.rank() == 1:
            raises(ZeroDivisionError, run.fit, module, loader(), loader())
        else:
            error = raises(hvd.HorovodInternalError, run.fit, module, loader(), loader())
            assert "rank 1" in str(error) and "ZeroDivisionError: as planned" in str(error)
            assert time.monotonic() - start < 30, "too late"      # a stall is told after 60 s
        assert all(not p._post_accumulate_grad_hooks for p in module.parameters())
        works_again()


@case
def both_ranks_fail():
    run = trainer()
    raises(ZeroDivisionError, run.fit, failing([0, 1]), loader())
    run.fit(Net(), loader())                        # the same Trainer and strategy
    works_again()


@case
def a_checkpoint_on_the_way_out_does_not_wait():
    """Callbacks hear of an exception first; they may save, but nobody comes to help."""
    with shared_directory() as directory:
        saver = package().callbacks.OnExceptionCheckpoint(directory)
        run = trainer(callbacks=[saver], enable_checkpointing=True)
        error = raises(BaseException, run.fit, failing([1]), loader())
        if hvd.rank() == 0:
            assert isinstance(error, hvd.HorovodInternalError), error
            assert os.path.exists(saver.ckpt_path)
        else:
            assert isinstance(error, ZeroDivisionError), error
    works_again()


@case
def no_loss_on_any_rank():
    """Lightning itself refuses to go on with several ranks."""
    module = Net()
    module.training_step = lambda batch, batch_idx: None
    raises(RuntimeError, trainer().fit, module, loader())
    works_again()


@case
def teardown_at_any_time():
    strategy().teardown()
    run = trainer()
    run.strategy.teardown()
    run.fit(Net(), loader())
    run.strategy.teardown()
    run.strategy.teardown()
    hvd.barrier()
    if hvd.rank() == 1:                             # alone
        trainer().strategy.teardown()
    hvd.shutdown()
    run.strategy.teardown()
    hvd.init()


@case
def elastic_training_is_left_alone():
    """The exceptions elastic training is made of do not end the job."""
    from horovod.common.exceptions import HostsUpdatedInterrupt
    module = Net()

    def training_step(batch, batch_idx):
        raise HostsUpdatedInterrupt(False)
    module.training_step = training_step
    raises(HostsUpdatedInterrupt, trainer().fit, module, loader())
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == 2
