"""fit: equal to a single process, all precisions, callbacks, one Trainer after the other."""
import os
import pickle
import subprocess
import sys

import torch
import torch.nn.functional as F

import horovod.torch as hvd
from lightning_support import (FEATURES, Net, alone, case, close, loader, module_class, net,
                               package, raises, same, shared_directory, strategy, trainer,
                               weights)


def fitted(module=None, name="lightning", **options):
    module = module or Net(name=name)
    run = trainer(name, **options)
    run.fit(module, loader())
    same(weights(module))
    return module


def _fit_equals_single_process(name):
    module = fitted(name=name, max_epochs=2)
    close(weights(module.net), weights(alone(epochs=2)))


@case
def fit_equals_single_process():
    _fit_equals_single_process("lightning")


@case
def fit_equals_single_process_in_the_other_copy():
    _fit_equals_single_process("pytorch_lightning")


@case
def accumulation_with_a_short_last_window():
    """4 batches in windows of 3: two steps, and gradients cross in two backward passes."""
    steps, differ = [], []
    module = Net()
    module.on_before_optimizer_step = steps.append

    def on_after_backward():
        grads = hvd.allgather(torch.cat([p.grad.reshape(-1) for p in module.parameters()])
                              .unsqueeze(0))
        differ.append(not bool((grads[0] == grads[1]).all()))
    module.on_after_backward = on_after_backward
    fitted(module, accumulate_grad_batches=3)
    assert len(steps) == 2, steps
    assert differ == [True, True, False, False], differ
    close(weights(module.net), weights(alone(window=3)))


@case
def clipping():
    close(weights(fitted(gradient_clip_val=0.3).net), weights(alone(clip=0.3)))
    close(weights(fitted(gradient_clip_val=0.3, accumulate_grad_batches=2).net),
          weights(alone(clip=0.3, window=2)))


@case
def hooks_see_reduced_gradients():
    module, seen = Net(), []

    def look(*_):
        seen.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]).clone())
    module.on_after_backward = look
    module.on_before_optimizer_step = look
    fitted(module)
    assert len(seen) == 8
    same(*seen)


@case
def accumulation_by_epoch():
    callback = package().callbacks.GradientAccumulationScheduler({0: 1, 1: 2})
    fitted(max_epochs=2, callbacks=[callback])


@case
def precisions():
    for precision, dtype in (("bf16-mixed", torch.float32), ("bf16-true", torch.bfloat16),
                             ("16-true", torch.float16), ("64-true", torch.float64)):
        module = fitted(precision=precision)
        assert {p.dtype for p in module.parameters()} == {dtype}, precision
        assert bool(torch.isfinite(weights(module)).all())
    close(weights(fitted(precision="64-true").net).float(), weights(alone()))


@case
def an_overflow_skips_the_step_on_all_ranks():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 40, growth_interval=1000)
    plugin = package().plugins.MixedPrecision("16-mixed", "cpu", scaler)
    module = fitted(plugins=[plugin])
    assert scaler.get_scale() == 2.0 ** 36, scaler.get_scale()
    close(weights(module.net), weights(net()), 0, 0)
    # Only one rank overflows: all skip.
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    plugin = package().plugins.MixedPrecision("16-mixed", "cpu", scaler)
    module = Net()
    step = module.training_step

    def training_step(batch, batch_idx):
        factor = float("inf") if batch_idx == 1 and hvd.rank() == 1 else 1.0
        return step(batch, batch_idx) * factor
    module.training_step = training_step
    fitted(module, plugins=[plugin])
    assert scaler.get_scale() == 2.0 and bool(torch.isfinite(weights(module)).all())


@case
def lbfgs():
    for options in ({}, {"line_search_fn": "strong_wolfe"}):
        module = fitted(Net(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4, **options)))
        assert bool((weights(module.net) != weights(net())).any())


@case
def a_parameter_that_one_rank_does_not_use():
    module = Net(lambda p: torch.optim.SGD(p, lr=0.1))
    module.extra = torch.nn.Linear(FEATURES, 3)
    start = weights(module.extra).clone()

    def training_step(batch, batch_idx):
        out = module(batch[0])
        if hvd.rank() == 1:
            out = out + module.extra(batch[0])
        return F.cross_entropy(out, batch[1])
    module.training_step = training_step
    fitted(module)
    assert bool((weights(module.extra) != start).any())


@case
def sparse_gradients():
    class Words(package().LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.words = torch.nn.Embedding(20, 4, sparse=True)

        def training_step(self, batch, batch_idx):
            return self.words(batch[1] + 5 * hvd.rank()).pow(2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    fitted(Words())


@case
def weights_start_equal():
    """Each rank has weights and buffers of its own before, those of rank 0 afterwards;
    for validation, too."""
    for call in ("fit", "validate"):
        module = Net(lambda p: torch.optim.SGD(p, lr=0.0))
        module.register_buffer("kept", torch.full((2,), float(hvd.rank())))
        module.register_buffer("passing", torch.full((2,), float(hvd.rank())),
                               persistent=False)
        with torch.no_grad():
            for p in module.parameters():
                p.add_(hvd.rank())
        run = trainer()
        getattr(run, call)(module, loader())
        close(weights(module.net), weights(net()), 0, 0)
        assert module.kept.sum() == 0 and module.passing.sum() == 0


# -- checkpoints ----------------------------------------------------------------------


@case
def checkpoint_and_resume():
    def adam(p):
        return torch.optim.Adam(p, lr=0.01)

    through = fitted(Net(adam), max_epochs=3)
    with shared_directory() as directory:
        saver = package().callbacks.ModelCheckpoint(dirpath=directory, save_last=True)
        fitted(Net(adam), max_epochs=2, callbacks=[saver], enable_checkpointing=True)
        assert sorted(os.listdir(directory)) == ["epoch=1-step=8.ckpt", "last.ckpt"]
        resumed = Net(adam)
        run = trainer(max_epochs=3)
        run.fit(resumed, loader(), ckpt_path=saver.last_model_path, weights_only=False)
        close(weights(resumed), weights(through), 0, 0)
        state = torch.load(saver.last_model_path, weights_only=False)["optimizer_states"][0]
        plain = torch.optim.Adam(net().parameters(), lr=0.01).state_dict()["param_groups"]
        assert set(state) == {"state", "param_groups"}
        assert set(state["param_groups"][0]) - {"initial_lr"} == set(plain[0])
        assert set(state["state"][0]) == {"step", "exp_avg", "exp_avg_sq"}
        if hvd.rank() == 0:
            _load_without_horovod(saver.last_model_path)


def _load_without_horovod(path):
    code = ("import sys; sys.modules['horovod'] = None\n"
            "import torch\n"
            f"state = torch.load({path!r}, weights_only=False)\n"
            "w = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)\n"
            "o = torch.optim.Adam([p for m in w for p in m.parameters()])\n"
            "o.load_state_dict(state['optimizer_states'][0])\n")
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=60)


# -- callbacks ------------------------------------------------------------------------


@case
def early_stopping_is_decided_together():
    """Rank 1 alone has a metric that gets worse."""
    module = Net()
    module.validation_step = lambda batch, batch_idx: module.log(
        "bad", float(module.current_epoch * (1 if hvd.rank() else -1)))
    stop = package().callbacks.EarlyStopping("bad", patience=2)
    run = trainer(max_epochs=9, callbacks=[stop])
    run.fit(module, loader(), loader())
    assert run.current_epoch == 3, run.current_epoch
    assert hvd.allgather_object(run.current_epoch) == [3, 3]


@case
def averaging_callbacks():
    callbacks = package().callbacks
    fitted(max_epochs=4, callbacks=[callbacks.StochasticWeightAveraging(0.05, 2)])
    if hasattr(callbacks, "EMAWeightAveraging"):
        fitted(max_epochs=2, callbacks=[callbacks.EMAWeightAveraging(decay=0.9)])


@case
def finetuning_adds_parameters():
    """Layers that are thawed later are reduced, too."""
    class Thaw(package().callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.net[0])

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.net[0], optimizer, lr=0.1)
    module = Net(lambda p: torch.optim.SGD([q for q in p if q.requires_grad], lr=0.1))
    fitted(module, max_epochs=3, callbacks=[Thaw()])
    assert bool((module.net[0].weight != net()[0].weight).any())


@case
def the_learning_rate_is_monitored_once():
    monitor = package().callbacks.LearningRateMonitor()
    with shared_directory() as directory:
        module = Net()

        def configure():
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
        module.configure_optimizers = configure
        logger = package().loggers.CSVLogger(directory)
        run = trainer(max_epochs=2, callbacks=[monitor], logger=logger, log_every_n_steps=1)
        run.fit(module, loader())
        assert list(monitor.lrs) == ["lr-SGD"], monitor.lrs
        assert run.optimizers[0] is run.lr_scheduler_configs[0].scheduler.optimizer
        hvd.barrier()
        assert os.path.exists(os.path.join(logger.log_dir, "metrics.csv"))


@case
def the_tuner_finds_a_learning_rate():
    from lightning.pytorch.tuner import Tuner
    module = Net()
    module.lr = 0.1
    module.make = lambda p: torch.optim.SGD(p, lr=module.lr)
    with shared_directory() as directory:
        run = trainer(max_epochs=3, default_root_dir=directory)
        finder = Tuner(run).lr_find(module, loader(), num_training=12, min_lr=1e-4, max_lr=1)
        assert len(finder.results["lr"]) >= 8
        found = hvd.allgather_object(module.lr)
        assert found[0] == found[1], found
        run.fit(module, loader())
        same(weights(module))


@case
def limits_and_overfitting():
    fitted(overfit_batches=2, max_epochs=2)
    fitted(limit_train_batches=2)
    fitted(max_steps=3)
    fitted(fast_dev_run=True)


# -- one after the other --------------------------------------------------------------


@case
def fit_again_and_other_calls():
    module = Net()
    run = trainer()
    run.fit(module, loader(), loader())
    first = run.callback_metrics["val_loss"].item()
    run.fit_loop.max_epochs = 2
    run.fit(module, loader(), loader())
    assert run.callback_metrics["val_loss"].item() != first
    assert run.validate(module, loader(), verbose=False)[0]["val_loss"] > 0
    assert run.test(module, loader(), verbose=False)[0]["test_loss"] > 0
    predictions = torch.cat(run.predict(module, loader()))
    assert predictions.shape == (16,)
    assert all(not p._post_accumulate_grad_hooks for p in module.parameters())
    fitted(module)                                          # another Trainer
    fitted(module, max_epochs=2)
    same(weights(module))


@case
def the_same_optimizer_again():
    module = Net()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module.make = lambda p: optimizer
    fitted(module)
    fitted(module)
    wrapped = hvd.DistributedOptimizer(optimizer, module.named_parameters())
    module.make = lambda p: wrapped
    fitted(module)
    assert trainer().strategy.optimizers == []


@case
def devices_say_nothing():
    for devices in (1, 2, 5, "auto"):
        run = trainer(devices=devices)
        assert (run.world_size, run.num_devices, run.num_nodes) == (2, 2, 1), devices
        assert (run.global_rank, run.local_rank, run.node_rank) == (hvd.rank(), hvd.rank(), 0)
        assert run.is_global_zero == (hvd.rank() == 0)
    pl = package()
    raises(pl.utilities.exceptions.MisconfigurationException, trainer, num_nodes=2)
    assert pl.utilities.rank_zero_only.rank == hvd.rank()


@case
def names_and_options():
    pl = package()
    for name in ("horovod", "Horovod", "horovod_fp16", "horovod_adasum"):
        run = trainer(strategy=name)
        assert type(run.strategy).__name__ == "HorovodStrategy"
        run.fit(Net(), loader())
        same(weights(run.lightning_module))
    raises(ValueError, strategy, compression="zip")
    raises(ValueError, strategy, op="sum")
    assert isinstance(run.strategy, pl.strategies.ParallelStrategy)
    raises(ValueError, trainer, strategy=strategy("pytorch_lightning"))
    assert "horovod" not in pl.accelerators.AcceleratorRegistry


@case
def the_samples_are_dealt_out():
    """9 samples: one of them twice."""
    data = torch.utils.data.TensorDataset(torch.arange(9))
    seen = []

    class Watcher(module_class()):
        def training_step(self, batch, batch_idx):
            seen.extend(batch[0].tolist())
            return self.net(torch.zeros(1, FEATURES)).sum()
    run = trainer(use_distributed_sampler=True)
    run.fit(Watcher(), torch.utils.data.DataLoader(data, batch_size=2))
    everything = sorted(i for part in hvd.allgather_object(seen) for i in part)
    assert len(everything) == 10 and set(everything) == set(range(9)), everything


@case
def pickling():
    for name in ("lightning", "pytorch_lightning"):
        before = pickle.loads(pickle.dumps(strategy(name)))
        assert before.world_size == 2 and before.scale_lr is False
        run = trainer(name)
        run.fit(Net(name=name), loader())
        kept = run.strategy._lightning_module, run.strategy._model
        run.strategy._lightning_module = run.strategy._model = None     # made in a function
        run.strategy.accelerator = None
        after = pickle.loads(pickle.dumps(run.strategy))
        run.strategy._lightning_module, run.strategy._model = kept
        assert after.optimizers == [] and after.global_rank == hvd.rank()


# -- batch normalisation --------------------------------------------------------------


@case
def sync_batchnorm():
    def build():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.BatchNorm1d(8),
                                   torch.nn.Linear(8, 3))
    module = Net()
    module.net = build()
    layer = module.net[1]
    fitted(module, sync_batchnorm=True)
    single = alone(model=build())
    close(weights(module.net), weights(single))
    assert module.net[1] is layer and type(layer) is torch.nn.BatchNorm1d
    close(layer.running_mean, single[1].running_mean)
    close(layer.running_var, single[1].running_var)
    same(layer.running_mean, layer.running_var)
