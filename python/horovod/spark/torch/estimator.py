"""``TorchEstimator`` and ``TorchModel``."""
import copy
import io
from typing import Any, Dict, Optional

from horovod.spark.common._predict import PredictingModel
from horovod.spark.common.estimator import HorovodEstimator
from horovod.spark.common.params import EstimatorParams, with_params

__all__ = ["EstimatorParams", "TorchEstimator", "TorchModel"]


@with_params([
    ("input_shapes", None, "a shape per feature"),
    ("train_minibatch_fn", None, "function for one step"),
    ("data_module", None, "class that gives the batches"),
    ("backward_passes_per_step", 1, "backward passes before gradients are averaged"),
])
class TorchEstimator(HorovodEstimator):
    """Trains a module on a DataFrame, in ``num_proc`` processes.

        model = TorchEstimator(num_proc=2, store=store, model=net, optimizer=optimizer,
                               loss=F.mse_loss, feature_cols=["x"], label_cols=["y"],
                               input_shapes=[[-1, 1]]).fit(df)
        model.transform(df)             # with a column y__output

    All parameters are keywords and have a setter and a getter.
    """

    _own_names = ("train_minibatch_fn", "backward_passes_per_step")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._begin(kwargs)

    def _check(self) -> None:
        super()._check()
        if self._value("optimizer") is None:
            raise ValueError("Optimizer parameter is required")
        if self._value("loss") is None and self._value("loss_constructors") is None:
            raise ValueError("Loss parameter is required: loss or loss_constructors")

    def _checkpoint(self, store: Any, run_id: str) -> Optional[bytes]:
        folder = store.get_checkpoint_path(run_id)
        if folder is None:
            return None
        path = f"{folder}/{store.get_checkpoint_filename()}"
        return store.read(path) if store.exists(path) else None

    def _trainer(self) -> Any:
        from horovod.spark.torch._train import train
        return train

    def _made(self, result: Any, task: Dict[str, Any], metadata: dict) -> "TorchModel":
        import torch
        history, state = result
        found = torch.load(io.BytesIO(state), map_location="cpu", weights_only=False)
        model, optimizer = copy.deepcopy((self._value("model"), self._value("optimizer")))
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        return TorchModel(history=history, model=model, optimizer=optimizer,
                          **self._handed_on(task, metadata))


class TorchModel(PredictingModel):
    """Adds a column ``<label>__output`` for each label."""
