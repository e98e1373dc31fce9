"""What a training process of ``TorchEstimator`` does: ``train(task)``.

1. All ranks take the same number of steps, whatever their part of the data holds.
2. The learning rates are those of the optimizer times the number of ranks, also when a run
   goes on; checkpoints hold the rates of the optimizer.
3. With ``backward_passes_per_step`` above 1 the last window of an epoch may have fewer passes;
   its losses are divided by their own number, so that it weighs as much as the others.
4. What comes back is the state of the last epoch.
"""
import io
import os
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

import horovod.torch as hvd
from horovod.spark.common.datamodule import ParquetDataModule, arguments
from horovod.spark.task import chosen_gpu


def as_inputs(batch: Dict[str, Any], columns: List[str], shapes: Optional[List],
              dtype: torch.dtype, device: Any) -> List[torch.Tensor]:
    """Columns as the model takes them: numbers with a point in the model's own type."""
    result = []
    for i, name in enumerate(columns):
        tensor = batch[name].to(device)
        if tensor.is_floating_point():
            tensor = tensor.to(dtype)
        if shapes is not None:
            shape = list(shapes[i])
            tensor = tensor.reshape(shape if -1 in shape else [len(tensor), *shape])
        result.append(tensor)
    return result


def dtype_of(model: torch.nn.Module) -> torch.dtype:
    """The type of a model's parameters."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()),
                torch.get_default_dtype())


def _device(task: Dict[str, Any]) -> torch.device:
    device = torch.device("cpu")
    if task["use_gpu"] and torch.cuda.is_available():
        device = torch.device("cuda", chosen_gpu(hvd.local_rank()))
        torch.cuda.set_device(device)
    kinds = hvd.allgather_object(device.type, name="spark.device")
    if len(set(kinds)) != 1:
        raise RuntimeError(f"All ranks don't have same device type! They have {kinds}")
    return device


class _Losses:
    """The loss of all labels together."""

    def __init__(self, task: Dict[str, Any], names: Dict[str, Any]) -> None:
        labels = len(task["label_cols"])
        constructors, given = task["loss_constructors"], task["loss"]
        if constructors is not None:
            made = [c(**names) for c in
                    (constructors if isinstance(constructors, (list, tuple))
                     else [constructors])]
        else:
            made = list(given) if isinstance(given, (list, tuple)) else [given]
        self._functions = made * labels if len(made) == 1 else made
        self._weights = task["loss_weights"] or [1.0 / labels] * labels
        self._shapes = task["label_shapes"]

    def transform(self, outputs: Any, labels: List[torch.Tensor]) -> Tuple[list, list]:
        """Outputs as a list; labels in the shape of their output where that can be."""
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if len(outputs) != len(labels):
            raise ValueError(f"the model gives {len(outputs)} outputs for {len(labels)} labels")
        return outputs, [self._shaped(i, outputs[i], label) for i, label in enumerate(labels)]

    def _shaped(self, i: int, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        if label.is_floating_point():
            label = label.to(output.dtype)
        if self._shapes is not None:
            return label.reshape(self._shapes[i])
        return label.reshape(output.shape) if label.numel() == output.numel() else label

    def __call__(self, outputs: list, labels: list,
                 sample_weights: Optional[torch.Tensor] = None) -> torch.Tensor:
        total: Any = 0.0
        for weight, function, output, label in zip(self._weights, self._functions, outputs,
                                                   labels):
            if sample_weights is None:
                total = total + weight * function(output, label)
                continue
            each = function(output, label, reduction="none")
            shape = [-1] + [1] * (each.dim() - 1)
            total = total + weight * (each * sample_weights.reshape(shape)).mean()
        return total


class _Metrics:
    """Means over steps and ranks."""

    def __init__(self, groups: Any, labels: int) -> None:
        self._groups = [list(group) if isinstance(group, (list, tuple)) else [group]
                        for group in groups or []]
        self._groups = [g * labels if len(g) == 1 else g for g in self._groups]
        self._sums: Optional[torch.Tensor] = None
        self._steps = 0

    def add(self, loss: torch.Tensor, outputs: list, labels: list) -> None:
        values = [loss.detach().reshape(())]
        for group in self._groups:
            values += [torch.as_tensor(metric(output.detach(), label)).reshape(())
                       for metric, output, label in zip(group, outputs, labels)]
        stacked = torch.stack([value.to("cpu", torch.float64) for value in values])
        self._sums = stacked if self._sums is None else self._sums + stacked
        self._steps += 1

    def means(self, name: str) -> Dict[str, Any]:
        assert self._sums is not None
        values = hvd.allreduce(self._sums / self._steps, name=f"spark.{name}").tolist()
        result: Dict[str, Any] = {"loss": values[0], "all_metrics": []}
        at = 1
        for group in self._groups:
            result["all_metrics"].append(values[at:at + len(group)])
            at += len(group)
        return result


class _Trainer:
    def __init__(self, task: Dict[str, Any]) -> None:
        self.task = task
        self.device = _device(task)
        self.model = task["model"]
        self.optimizer = self._optimizer()
        self.passes = task["backward_passes_per_step"]
        self._resume()
        self.model.to(self.device)
        self._to_device()
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr"] * hvd.size()
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=0)
        compression = task["gradient_compression"] or hvd.Compression.none
        self.distributed = hvd.DistributedOptimizer(
            self.optimizer, named_parameters=self.model.named_parameters(),
            compression=compression, backward_passes_per_step=self.passes)
        self.losses = _Losses(task, dict(model=self.model, optimizer=self.distributed,
                                         hvd=hvd, device=self.device, **_names(task)))
        self.dtype = dtype_of(self.model)

    def _optimizer(self) -> torch.optim.Optimizer:
        """The user's, which came with the model and holds its parameters; one that holds
        others, such as those of a copy, gets the model's by their order."""
        optimizer = self.task["optimizer"]
        own = list(self.model.parameters())
        held = [p for group in optimizer.param_groups for p in group["params"]]
        if {id(p) for p in held} <= {id(p) for p in own}:
            return optimizer
        if len(held) != len(own):
            raise ValueError(f"the optimizer holds {len(held)} parameters that are not of the "
                             f"model, which has {len(own)}")
        left = iter(own)
        state = optimizer.state_dict()
        for group in optimizer.param_groups:
            group["params"] = [next(left) for _ in group["params"]]
        optimizer.load_state_dict(state)
        return optimizer

    def _resume(self) -> None:
        if self.task["checkpoint"] is None:
            return
        found = torch.load(io.BytesIO(self.task["checkpoint"]), map_location="cpu",
                           weights_only=False)
        self.model.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])

    def _to_device(self) -> None:
        for state in self.optimizer.state.values():
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[name] = value.to(self.device)

    # -- steps --------------------------------------------------------------------------

    def _unpacked(self, batch: Dict[str, Any]) -> tuple:
        task = self.task
        inputs = as_inputs(batch, task["feature_cols"], task["input_shapes"], self.dtype,
                           self.device)
        labels = [batch[name].to(self.device) for name in task["label_cols"]]
        weight = task["sample_weight_col"]
        return inputs, labels, batch[weight].to(self.device) if weight else None

    def _minibatch(self, window: int, last: bool) -> Callable:
        """The default ``train_minibatch_fn``: rule 3."""
        def step(model: Any, optimizer: Any, transform_outputs: Any, loss_fn: Any, inputs: Any,
                 labels: Any, sample_weights: Any, backward_passes_per_step: int,
                 batch_idx: int) -> tuple:
            if batch_idx % backward_passes_per_step == 0:
                optimizer.zero_grad()
            outputs, labels = transform_outputs(model(*inputs), labels)
            loss = loss_fn(outputs, labels, sample_weights)
            (loss / window if window > 1 else loss).backward()
            if last:
                optimizer.step()
            return outputs, loss
        return step

    def train_epoch(self, data: Any) -> Dict[str, Any]:
        task, steps = self.task, self.task["train_steps"]
        metrics = _Metrics(task["metrics"], len(task["label_cols"]))
        self.model.train()
        for index, batch in enumerate(data):
            inputs, labels, weights = self._unpacked(batch)
            begin = index - index % self.passes
            window = min(self.passes, steps - begin)
            step = task["train_minibatch_fn"] or self._minibatch(
                window, index + 1 == begin + window)
            outputs, loss = step(self.model, self.distributed, self.losses.transform,
                                 self.losses, inputs, labels, weights, self.passes, index)
            with torch.no_grad():
                metrics.add(loss, *self.losses.transform(outputs, labels))
            if index + 1 == steps:
                break
        return metrics.means("train")

    def validate(self, data: Any) -> Dict[str, Any]:
        task = self.task
        metrics = _Metrics(task["metrics"], len(task["label_cols"]))
        self.model.eval()
        with torch.no_grad():
            for index, batch in enumerate(data):
                inputs, labels, weights = self._unpacked(batch)
                outputs, labels = self.losses.transform(self.model(*inputs), labels)
                metrics.add(self.losses(outputs, labels, weights), outputs, labels)
                if index + 1 == task["val_steps"]:
                    break
        return metrics.means("validation")

    # -- run ----------------------------------------------------------------------------

    def state(self) -> bytes:
        """Model and optimizer with the rates of rule 2."""
        optimizer = self.optimizer.state_dict()
        groups = [dict(group, lr=group["lr"] / hvd.size())
                  for group in optimizer["param_groups"]]
        buffer = io.BytesIO()
        torch.save({"model": self.model.state_dict(),
                    "optimizer": dict(optimizer, param_groups=groups)}, buffer)
        return buffer.getvalue()

    def run(self, local_dir: str) -> Tuple[list, bytes]:
        task, history = self.task, []
        module = (task["data_module"] or ParquetDataModule)(
            **arguments(task, hvd.rank(), hvd.size()))
        write = _tensorboard(os.path.join(local_dir, task["store"].logs_subdir)
                             if hvd.rank() == 0 and task["store"].saving_runs else None)
        with module as data:
            train, val = data.train_data(), data.val_data() if task["has_val"] else None
            for epoch in range(task["epochs"]):
                entry: Dict[str, Any] = {"epoch": epoch, "train": self.train_epoch(train)}
                if val is not None:
                    entry["validation"] = self.validate(val)
                history.append(entry)
                self._after(entry, local_dir, write)
        return history, self.state()

    def _after(self, entry: Dict[str, Any], local_dir: str, write: Callable) -> None:
        if hvd.rank() != 0:
            return
        store = self.task["store"]
        if self.task["verbose"]:
            print(f"epoch {entry['epoch']}: " + ", ".join(
                f"{part} loss {entry[part]['loss']:.6g}" for part in ("train", "validation")
                if part in entry), flush=True)
        write(entry)
        if store.saving_runs:
            with open(os.path.join(local_dir, store.checkpoint_filename), "wb") as file:
                file.write(self.state())
            store.sync(local_dir)


def _names(task: Dict[str, Any]) -> Dict[str, Any]:
    """The local names that constructors of losses are called with, beside the objects."""
    return {name: task[name] for name in ("feature_cols", "label_cols", "batch_size", "epochs",
                                          "sample_weight_col", "metrics", "run_id")}


def _tensorboard(folder: Optional[str]) -> Callable[[Dict[str, Any]], None]:
    """A function that writes the figures of an epoch; does nothing without TensorBoard."""
    if folder is None:
        return lambda entry: None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        try:
            from tensorboardX import SummaryWriter      # type: ignore[no-redef]
        except ImportError:
            return lambda entry: None
    writer = SummaryWriter(folder)

    def write(entry: Dict[str, Any]) -> None:
        for part in ("train", "validation"):
            for name, value in _flat(entry.get(part, {})):
                writer.add_scalar(f"{part}/{name}", value, entry["epoch"])
        writer.flush()
    return write


def _flat(figures: Dict[str, Any]) -> List[tuple]:
    found = [("loss", figures["loss"])] if figures else []
    for i, group in enumerate(figures.get("all_metrics", [])):
        found += [(f"metric_{i}_{j}", value) for j, value in enumerate(group)]
    return found


def train(task: Dict[str, Any]) -> Optional[Tuple[list, bytes]]:
    """History, and model and optimizer as bytes, on rank 0; None on the others."""
    if task["mp_start_method"]:
        torch.multiprocessing.set_start_method(task["mp_start_method"], force=True)
    if task["random_seed"] is not None:
        torch.manual_seed(task["random_seed"])
    hvd.init()
    with task["store"].get_local_output_dir() as local_dir:
        result = _Trainer(task).run(local_dir)
    return result if hvd.rank() == 0 else None
