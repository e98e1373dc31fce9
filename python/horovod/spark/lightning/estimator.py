"""``TorchEstimator`` and ``TorchModel`` for Lightning."""
import io
import re
from typing import Any, Dict, Optional

from horovod.common.advice import advised
from horovod.runner.common.util import codec
from horovod.spark.common._predict import PredictingModel
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import EstimatorParams, with_params

__all__ = ["EstimatorParams", "MIN_PL_VERSION", "TorchEstimator", "TorchModel"]
MIN_PL_VERSION = "1.3.8"


def is_lightning(model: Any) -> bool:
    """Whether a module is a LightningModule, of whichever package."""
    return any(kind.__name__ == "LightningModule" for kind in type(model).__mro__)


@with_params([
    ("input_shapes", None, "a shape per feature"),
    ("train_minibatch_fn", None, "accepted; training_step decides"),
    ("data_module", None, "LightningDataModule class that gives the batches"),
    ("num_gpus", None, "GPUs per process: 0 or 1"),
    ("logger", None, "logger of the Trainer; its directory becomes that of the run"),
    ("log_every_n_steps", 50, "how often the logger is called"),
    ("loader_num_epochs", None, "accepted; loaders go on for ever"),
    ("terminate_on_nan", False, "ValueError when the loss is not finite"),
    ("profiler", None, "profiler of the Trainer"),
    ("trainer_args", None, "more arguments of the Trainer; they win"),
    ("debug_data_loader", False, "log what the loader does"),
    ("train_async_data_loader_queue_size", None, "batches loaded ahead by a thread"),
    ("val_async_data_loader_queue_size", None, "the same in validation"),
])
class TorchEstimator(HorovodEstimator):
    """Trains a LightningModule on a DataFrame, in ``num_proc`` processes.

        model = TorchEstimator(num_proc=2, store=store, model=net, feature_cols=["features"],
                               label_cols=["label"], input_shapes=[[-1, 3]], epochs=5).fit(df)

    A batch of ``training_step`` is a dictionary of tensors by column.  A plain module with
    ``optimizer`` and ``loss`` is wrapped; it gets its features by name.
    """

    _own_names = ("num_gpus", "logger", "log_every_n_steps", "loader_num_epochs",
                  "terminate_on_nan", "profiler", "trainer_args", "debug_data_loader",
                  "train_async_data_loader_queue_size", "val_async_data_loader_queue_size")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._begin(kwargs)

    def _check(self) -> None:
        super()._check()
        if not is_lightning(self._value("model")):
            for name in ("optimizer", "loss"):
                if self._value(name) is None:
                    raise ValueError(advised(
                        f"a plain torch module needs the parameter {name}; a "
                        "LightningModule brings its own"))
            return
        for name, instead in (("optimizer", "configure_optimizers"), ("loss", "training_step"),
                              ("loss_weights", "training_step")):
            if self._value(name):
                raise ValueError(advised(
                    f"Parameter {name} cannot be given for a LightningModule: use "
                    f"its {instead}"))

    def _checkpoint(self, store: Any, run_id: str) -> Optional[bytes]:
        """The one with the highest epoch and step."""
        best = None
        for path in store.get_checkpoints(run_id):
            found = re.search(r"epoch=(\d+)-step=(\d+)", path)
            data = None
            if found is not None:
                at = int(found[1]), int(found[2])
            else:
                import torch
                data = store.read(path)
                saved = torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
                at = saved.get("epoch", -1), saved.get("global_step", -1)
            if best is None or at > best[0]:
                best = at, path, data
        if best is None:
            return None
        return best[2] or store.read(best[1])

    def _trainer(self) -> Any:
        from horovod.spark.lightning._train import train
        return train

    def _made(self, result: Any, task: Dict[str, Any], metadata: dict) -> "TorchModel":
        model = codec.loads(codec.dumps(self._value("model")))
        model.load_state_dict(result["model"])
        return TorchModel(history=result["logged_metrics"], model=model,
                          optimizer=self._value("optimizer"), **self._handed_on(task, metadata))


class TorchModel(PredictingModel):
    """Adds a column ``<label>__output`` for each label."""
