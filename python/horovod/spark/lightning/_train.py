"""What a training process of the Lightning estimator does: ``train(task)``.

Checkpoints and logs are written into a local directory, which rank 0 copies into the store
when an epoch has begun and at the end.  The model that comes back is the best one if the user
gave a ModelCheckpoint, else the last.
"""
import importlib
import logging
import os
import warnings
from typing import Any, Dict, List, Optional

import torch

import horovod.torch as hvd
from horovod.spark.common.datamodule import arguments
from horovod.spark.lightning.estimator import is_lightning
from horovod.spark.task import chosen_gpu

log = logging.getLogger("horovod.spark")
CHECKPOINT_NAME = "{epoch}-{step}"
_REMOVED_HOOKS = ("on_init_start", "on_init_end", "on_epoch_start", "on_epoch_end",
                  "on_batch_start", "on_batch_end", "on_pretrain_routine_start",
                  "on_pretrain_routine_end", "on_configure_sharded_model")


def lightning_of(model: Any) -> Any:
    """The package of a LightningModule: lightning.pytorch or pytorch_lightning."""
    for kind in type(model).__mro__:
        if kind.__name__ == "LightningModule":
            root = kind.__module__.split(".")[0]
            return importlib.import_module("lightning.pytorch" if root == "lightning" else root)
    try:
        return importlib.import_module("lightning.pytorch")
    except ImportError:
        return importlib.import_module("pytorch_lightning")


# ---- Arguments of the Trainer --------------------------------------------------------------

def current_arguments(given: Dict[str, Any], package: Any) -> Dict[str, Any]:
    """The user's arguments of the Trainer, with those of Lightning 1.x in today's words."""
    result = dict(given)
    callbacks: List[Any] = []

    def take(name: str) -> Any:
        return result.pop(name, None)

    if "progress_bar_refresh_rate" in result and take("progress_bar_refresh_rate") == 0:
        result.setdefault("enable_progress_bar", False)
    if "checkpoint_callback" in result:
        result.setdefault("enable_checkpointing", bool(take("checkpoint_callback")))
    if "weights_summary" in result:
        result.setdefault("enable_model_summary", take("weights_summary") is not None)
    if take("reload_dataloaders_every_epoch"):
        result.setdefault("reload_dataloaders_every_n_epochs", 1)
    if take("stochastic_weight_avg"):
        callbacks.append(package.callbacks.StochasticWeightAveraging(swa_lrs=1e-2))
    if "gpus" in result:
        result.setdefault("accelerator", "gpu" if take("gpus") else "cpu")
    if take("terminate_on_nan"):
        callbacks.append(finite_loss(package))
        result.setdefault("detect_anomaly", True)
    for name in ("resume_from_checkpoint", "flush_logs_every_n_steps", "distributed_backend"):
        if name in result:
            take(name)
            warnings.warn(f"trainer_args: {name} is gone from Lightning and has no effect")
    if callbacks:
        result["_more_callbacks"] = callbacks
    return result


def finite_loss(package: Any) -> Any:
    """A callback that ends training with ValueError when the loss is not a number."""
    class FiniteLoss(package.Callback):             # type: ignore[name-defined]
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any,
                               batch_idx: int) -> None:
            loss = outputs["loss"] if isinstance(outputs, dict) else outputs
            if isinstance(loss, torch.Tensor) and not torch.isfinite(loss).all():
                raise ValueError(f"The loss returned in `training_step` is {loss}.")
    return FiniteLoss()


def _sync_callback(package: Any, store: Any, local_dir: str) -> Any:
    class SyncCallback(package.Callback):           # type: ignore[name-defined]
        """Copies what the epochs before have left."""

        def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
            if trainer.current_epoch > 0 and hvd.rank() == 0:
                store.sync(local_dir)
    return SyncCallback()


def _redirect(logger: Any, folder: str) -> Any:
    """A logger that writes into the run: the setter of its directory is gone."""
    for name in ("_root_dir", "_save_dir"):
        if hasattr(logger, name):
            setattr(logger, name, folder)
    key = getattr(logger, "_experiment_key", None)
    if key is not None and type(logger).__name__ == "CometLogger":
        log.info("the Comet experiment %s is continued", key)
    return logger


def _logger(task: Dict[str, Any], package: Any, folder: str) -> Any:
    if task["logger"] is not None:
        return _redirect(task["logger"], folder)
    os.makedirs(folder, exist_ok=True)
    try:
        return package.loggers.TensorBoardLogger(folder)
    except ModuleNotFoundError as e:
        warnings.warn(f"there is no TensorBoard ({e}): the run is logged as CSV")
        return package.loggers.CSVLogger(folder)


class _Callbacks:
    """The user's callbacks with ours; the user's list stays as it is."""

    def __init__(self, task: Dict[str, Any], package: Any, local_dir: str) -> None:
        self.all = list(task["callbacks"] or [])
        _warn_of_removed_hooks(self.all)
        store = task["store"]
        kind = package.callbacks.ModelCheckpoint
        self.given: Optional[Any] = next((c for c in self.all if isinstance(c, kind)), None)
        if self.given is not None:
            self.given.dirpath, self.given.filename = local_dir, CHECKPOINT_NAME
        elif store.saving_runs:
            self.all.append(kind(dirpath=local_dir, filename=CHECKPOINT_NAME))
        if store.saving_runs:
            self.all.append(_sync_callback(package, store, local_dir))
        if task["terminate_on_nan"]:
            self.all.append(finite_loss(package))


def _warn_of_removed_hooks(callbacks: List[Any]) -> None:
    for callback in callbacks:
        gone = [name for name in _REMOVED_HOOKS if hasattr(callback, name)]
        if gone:
            warnings.warn(f"{type(callback).__name__} has hooks that Lightning does not call any "
                          f"more: {', '.join(gone)}")


def trainer_arguments(task: Dict[str, Any], package: Any, local_dir: str,
                      callbacks: _Callbacks) -> Dict[str, Any]:
    """What the Trainer is made with; ``trainer_args`` wins."""
    from horovod.lightning import classes
    root = "lightning" if package.__name__.startswith("lightning") else "pytorch_lightning"
    saving = task["store"].saving_runs
    folder = os.path.join(local_dir, task["store"].logs_subdir)
    gpu = task["use_gpu"] and torch.cuda.is_available() and task["num_gpus"] != 0
    ours = dict(
        callbacks=callbacks.all, max_epochs=task["epochs"],
        logger=_logger(task, package, folder) if saving else bool(task["logger"]),
        log_every_n_steps=task["log_every_n_steps"], num_sanity_val_steps=0,
        profiler=task["profiler"], strategy=classes(root).HorovodStrategy(),
        accelerator="gpu" if gpu else "cpu", devices="auto", use_distributed_sampler=False,
        default_root_dir=local_dir,
        enable_checkpointing=saving or callbacks.given is not None,
        enable_progress_bar=bool(task["verbose"]), enable_model_summary=bool(task["verbose"]))
    if task["terminate_on_nan"]:
        ours["detect_anomaly"] = True
    theirs = current_arguments(task["trainer_args"] or {}, package)
    more = theirs.pop("_more_callbacks", [])
    result = {**ours, **theirs}
    result["callbacks"] = [*result["callbacks"], *more]
    return result


# ---- Training -------------------------------------------------------------------------------

def _fit(trainer: Any, model: Any, data: Any, checkpoint: Optional[str]) -> None:
    options: Dict[str, Any] = {"ckpt_path": checkpoint}
    if checkpoint is not None:
        import inspect
        if "weights_only" in inspect.signature(trainer.fit).parameters:
            options["weights_only"] = False
    trainer.fit(model, datamodule=data, **options)


def _numbers(trainer: Any) -> Dict[str, float]:
    found = {**trainer.callback_metrics, **trainer.logged_metrics}
    return {name: float(value) for name, value in found.items()}


def _saved_checkpoint(task: Dict[str, Any], local_dir: str) -> Optional[str]:
    """The file of the run's last checkpoint; outside the directory that is copied."""
    if task["checkpoint"] is None:
        return None
    path = os.path.join(local_dir, "resumed")
    with open(path, "wb") as file:
        file.write(task["checkpoint"])
    return path


def _run(task: Dict[str, Any], local_dir: str, resume_dir: str) -> Dict[str, Any]:
    from horovod.spark.lightning.datamodule import data_module_class
    from horovod.spark.lightning.legacy import to_lightning_module
    package = lightning_of(task["model"])
    wrapped = not is_lightning(task["model"])
    model = to_lightning_module(package, task) if wrapped else task["model"]
    callbacks = _Callbacks(task, package, local_dir)
    trainer = package.Trainer(**trainer_arguments(task, package, local_dir, callbacks))
    names = ("debug_data_loader", "train_async_data_loader_queue_size",
             "val_async_data_loader_queue_size")
    data = (task["data_module"] or data_module_class(package))(
        **arguments(task, hvd.rank(), hvd.size()), num_reader_epochs=task["loader_num_epochs"],
        **{name: task[name] for name in names})
    _fit(trainer, model, data, _saved_checkpoint(task, resume_dir))
    if callbacks.given is not None and callbacks.given.best_model_path and hvd.rank() == 0:
        best = torch.load(callbacks.given.best_model_path, map_location="cpu",
                          weights_only=False)
        model.load_state_dict(best["state_dict"])
    if task["store"].saving_runs and hvd.rank() == 0:
        task["store"].sync(local_dir)
    state = (model._module if wrapped else model).state_dict()
    return {"model": {name: tensor.cpu() for name, tensor in state.items()},
            "logged_metrics": _numbers(trainer)}


def train(task: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The state of the model and the last metrics, on rank 0; None on the others."""
    if task["mp_start_method"]:
        torch.multiprocessing.set_start_method(task["mp_start_method"], force=True)
    hvd.init()
    if torch.cuda.is_available() and task["use_gpu"]:
        torch.cuda.set_device(chosen_gpu(hvd.local_rank()))
    if task["random_seed"] is not None:
        lightning_of(task["model"]).seed_everything(task["random_seed"])
    store = task["store"]
    with store.get_local_output_dir() as local_dir, store.get_local_output_dir() as resume_dir:
        result = _run(task, local_dir, resume_dir)
        hvd.barrier()           # nobody takes away what others still read
    return result if hvd.rank() == 0 else None
