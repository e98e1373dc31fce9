"""Values that cross the ranks: sync_dist, all_gather, reduce, torchmetrics."""
import torch
import torchmetrics

import horovod.torch as hvd
from lightning_support import (Lines, Net, case, close, loader, package, raises, same, strategy,
                               trainer, weights)


@case
def sync_dist():
    module = Net()

    def validation_step(batch, batch_idx):
        value = float(hvd.rank() + 1)
        module.log("mean", value, sync_dist=True)
        module.log("int", 3 + hvd.rank(), sync_dist=True)
        for fx in ("sum", "max", "min"):
            module.log(fx, torch.tensor(value), sync_dist=True, reduce_fx=fx)
        module.log("local", value)
    module.validation_step = validation_step
    run = trainer()
    run.validate(module, loader(), verbose=False)
    metrics = {k: v.item() for k, v in run.callback_metrics.items()}
    # "sum" is over the 4 batches of both ranks.
    assert metrics == {"mean": 1.5, "int": 3.5, "sum": 12.0, "max": 2.0, "min": 1.0,
                       "local": hvd.rank() + 1.0}, metrics


@case
def all_gather():
    r = hvd.rank()
    module, out = Net(), {}

    def validation_step(batch, batch_idx):
        out["scalar"] = module.all_gather(torch.tensor(float(r)))
        out["matrix"] = module.all_gather(torch.full((2, 3), float(r)))
        out["nested"] = module.all_gather({"a": torch.tensor(r), "b": [torch.ones(1) * r]})
        out["number"] = module.all_gather(r)
    module.validation_step = validation_step
    trainer(limit_val_batches=1).validate(module, loader(), verbose=False)
    assert out["scalar"].tolist() == [0, 1]
    assert out["matrix"].shape == (2, 2, 3) and out["matrix"][:, 0, 0].tolist() == [0, 1]
    assert out["nested"]["a"].tolist() == [0, 1]
    assert out["nested"]["b"][0].tolist() == [[0], [1]]
    assert out["number"].tolist() == [0, 1]
    joined = strategy(concatenate=True)
    assert joined.all_gather(torch.full((2, 3), 1.0)).shape == (4, 3)
    assert joined.all_gather(torch.tensor(1.0)).shape == (2,)


@case
def gradients_through_all_gather():
    """A loss of everybody's outputs has the gradient of a single process with all of them:
    each rank gets the sum over the ranks, the average over ranks makes it whole."""
    torch.manual_seed(0)
    whole = torch.randn(2, 4, 3)
    w = torch.randn(3, requires_grad=True)
    ((whole @ w).exp().sum(1) ** 2).sum().backward()
    expected, w.grad = w.grad, None
    outputs = strategy().all_gather(whole[hvd.rank()] @ w, sync_grads=True)
    (outputs.exp().sum(1) ** 2).sum().backward()
    close(hvd.allreduce(w.grad), expected)
    assert not strategy().all_gather(w).requires_grad


@case
def reduce():
    s, r = strategy(), hvd.rank()
    ReduceOp = torch.distributed.ReduceOp
    values = torch.tensor([2.0 + r, 4.0 - r])
    for op, expected in ((None, [2.5, 3.5]), ("mean", [2.5, 3.5]), ("AVG", [2.5, 3.5]),
                         ("sum", [5, 7]), (ReduceOp.SUM, [5, 7]), (ReduceOp.AVG, [2.5, 3.5]),
                         ("max", [3, 4]), (ReduceOp.MIN, [2, 3]), ("min", [2, 3]),
                         ("product", [6, 12]), (ReduceOp.PRODUCT, [6, 12])):
        assert s.reduce(values, reduce_op=op).tolist() == expected, op
    assert s.reduce(torch.tensor(r + 1), reduce_op="sum").item() == 3
    assert s.reduce(torch.tensor(r + 1)).dtype == torch.int64
    assert s.reduce("text", reduce_op="sum") == "text" and s.reduce(3) == 3
    assert s.reduce(values, group=hvd.global_process_set).tolist() == [2.5, 3.5]
    raises(ValueError, s.reduce, values, reduce_op="bitxor")
    raises(ValueError, s.reduce, values, group="some")
    run = trainer()
    assert run.strategy.reduce_boolean_decision(r == 0) is False
    assert run.strategy.reduce_boolean_decision(r == 0, all=False) is True
    assert run.strategy.broadcast({"rank": r}) == {"rank": 0}
    assert run.strategy.broadcast(None if r == 0 else "x", src=1) == "x"


def with_metric(metric, log, **options):
    """The logged value and the lines of the log."""
    module = Net()
    module.metric = metric

    def validation_step(batch, batch_idx):
        metric.update(torch.full((1 + hvd.rank(),), hvd.rank()),
                      torch.ones(1 + hvd.rank(), dtype=torch.long))
        module.log("metric", metric, **log)
    module.validation_step = validation_step
    run = trainer(limit_val_batches=1, strategy=strategy(**options))
    with Lines() as lines:
        run.validate(module, loader(), verbose=False)
    return run.callback_metrics["metric"].item(), [n for n in lines if "torchmetrics" in n]


@case
def torchmetrics_are_reduced():
    """Rank 0 has 0 of 1 right, rank 1 has 2 of 2."""
    def accuracy(**options):
        return torchmetrics.classification.BinaryAccuracy(**options)

    for log in ({}, {"sync_dist": True}):
        value, lines = with_metric(accuracy(), log)
        close(torch.tensor(value), torch.tensor(2 / 3))
        assert len(lines) == (1 if hvd.rank() == 0 else 0), lines
    value, lines = with_metric(accuracy(), {}, sync_torchmetrics=False)
    assert value == float(hvd.rank()) and not lines
    # The user's own functions stay.
    own = accuracy(distributed_available_fn=lambda: False)
    assert with_metric(own, {})[0] == float(hvd.rank())


@case
def states_of_different_lengths():
    module = Net()
    module.all = torchmetrics.CatMetric()
    module.both = torchmetrics.MetricCollection({"mean": torchmetrics.MeanMetric()})

    def validation_step(batch, batch_idx):
        module.all.update(torch.arange(2.0 + hvd.rank()) + 10 * hvd.rank())
        module.both.update(torch.tensor(float(hvd.rank())))
    module.validation_step = validation_step
    results = {}
    module.on_validation_epoch_end = lambda: results.update(
        all=module.all.compute().tolist(), mean=module.both.compute()["mean"].item())
    trainer(limit_val_batches=1).validate(module, loader(), verbose=False)
    assert results == {"all": [0, 1, 10, 11, 12], "mean": 0.5}, results


@case
def checkpoints_by_a_metric():
    """All ranks agree on the best checkpoint, which rank 0 wrote."""
    from lightning_support import shared_directory
    with shared_directory() as directory:
        saver = package().callbacks.ModelCheckpoint(dirpath=directory, monitor="val_loss")
        run = trainer(max_epochs=2, callbacks=[saver], enable_checkpointing=True)
        module = Net()
        run.fit(module, loader(), loader())
        paths = hvd.allgather_object(saver.best_model_path)
        assert paths[0] == paths[1] and paths[0].startswith(directory)
        same(weights(module))
