"""Where training processes get their batches from."""
import logging
from typing import Any, Dict, Optional, Sequence

from horovod.spark.common._reader import Loader, Reader, Transformation

log = logging.getLogger("horovod.spark")


class DataModule:
    """The base of data modules: a context manager with ``train_data()`` and ``val_data()``,
    which give iterables of batches, the same number on every rank."""

    def __init__(self, train_dir: str, val_dir: str, num_train_epochs: int = 1,
                 has_val: bool = True, train_batch_size: int = 32, val_batch_size: int = 32,
                 shuffle: bool = True, transform_fn: Any = None,
                 inmemory_cache_all: bool = False, cur_shard: int = 0, shard_count: int = 1,
                 schema_fields: Optional[Sequence[str]] = None,
                 storage_options: Optional[Dict[str, Any]] = None,
                 steps_per_epoch_train: int = 1, steps_per_epoch_val: int = 1,
                 verbose: bool = True, **kwargs: Any) -> None:
        self.train_dir, self.val_dir = train_dir, val_dir
        self.num_train_epochs, self.has_val = num_train_epochs, has_val
        self.train_batch_size, self.val_batch_size = train_batch_size, val_batch_size
        self.shuffle, self.transform_fn = shuffle, transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard, self.shard_count = cur_shard, shard_count
        self.schema_fields, self.storage_options = schema_fields, storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.verbose = verbose
        self.kwargs = kwargs

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def train_data(self) -> Any:
        raise NotImplementedError()

    def val_data(self) -> Any:
        raise NotImplementedError()


class ParquetDataModule(DataModule):
    """Reads the store's Parquet files; each batch is a dictionary of tensors by column."""

    def _loader(self, path: str, batch_size: int, steps: int, shuffle: bool,
                workers: int) -> Loader:
        more = self.kwargs
        transformation = None
        if self.transform_fn is not None or more.get("transformation_removed_fields"):
            transformation = Transformation(self.transform_fn,
                                            more.get("transformation_edit_fields"),
                                            more.get("transformation_removed_fields"))
        reader = Reader(path, self.schema_fields, batch_size, self.cur_shard, self.shard_count,
                        shuffle, more.get("seed"),
                        0 if more.get("reader_pool_type") == "dummy" else workers,
                        self.inmemory_cache_all, transformation, more.get("formats"),
                        self.storage_options)
        return Loader(reader, steps)

    def train_data(self) -> Loader:
        return self._loader(self.train_dir, self.train_batch_size, self.steps_per_epoch_train,
                            self.shuffle, self.kwargs.get("train_reader_worker_count", 2))

    def val_data(self) -> Optional[Loader]:
        if not self.has_val:
            return None
        return self._loader(self.val_dir, self.val_batch_size, self.steps_per_epoch_val,
                            False, self.kwargs.get("val_reader_worker_count", 2))


def arguments(task: Dict[str, Any], rank: int, size: int) -> Dict[str, Any]:
    """The keywords with which a data module of a training process is called."""
    columns = [*task["feature_cols"], *task["label_cols"]]
    if task["sample_weight_col"]:
        columns.append(task["sample_weight_col"])
    store = task["store"]
    return dict(
        train_dir=store.train_data_path, val_dir=store.val_data_path,
        num_train_epochs=task["epochs"], has_val=task["has_val"],
        train_batch_size=task["batch_size"], val_batch_size=task["val_batch_size"],
        shuffle=task["shuffle"], transform_fn=task["transformation_fn"],
        transformation=task["transformation_fn"],
        transformation_edit_fields=task["transformation_edit_fields"],
        transformation_removed_fields=task["transformation_removed_fields"],
        inmemory_cache_all=task["inmemory_cache_all"], cur_shard=rank, shard_count=size,
        schema_fields=list(dict.fromkeys(columns)), storage_options=store.storage_options,
        steps_per_epoch_train=task["train_steps"], steps_per_epoch_val=task["val_steps"],
        verbose=bool(task["verbose"]), reader_pool_type=task["reader_pool_type"],
        train_reader_worker_count=task["train_reader_num_workers"],
        val_reader_worker_count=task["val_reader_num_workers"],
        reader_worker_count=task["train_reader_num_workers"],
        seed=task["random_seed"], formats=task["formats"])
