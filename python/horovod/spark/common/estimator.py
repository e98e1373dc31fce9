"""What the estimators and the models they give have in common."""
import time
from typing import Any, Dict, List, Optional

from pyspark.ml import Estimator, Model

from horovod.spark.common import _prepare
from horovod.spark.common._persistence import Persistent
from horovod.spark.common.backend import Backend, SparkBackend
from horovod.spark.common.params import EstimatorParams, ModelParams


class HorovodEstimator(Estimator, EstimatorParams, Persistent):
    """``fit`` trains on a DataFrame, ``fit_on_parquet`` on what is in the store already."""

    def fit_on_parquet(self, params: Optional[Dict] = None,
                       dataset_idx: Optional[int] = None) -> Any:
        """Trains on the Parquet files of the store's train and validation paths."""
        if params:
            return self.copy(params).fit_on_parquet(dataset_idx=dataset_idx)
        self._check()
        backend = self._backend()
        properties = _prepare.get_simple_meta_from_parquet(
            self._value("store"), self._value("label_cols"), self._value("feature_cols"),
            self._value("sample_weight_col"), dataset_idx)
        return self._train(backend, properties, dataset_idx)

    def _fit(self, dataset: Any) -> Any:
        self._check()
        backend = self._backend()
        with _prepare.prepare_data(
                backend.num_processes(), self._value("store"), dataset,
                label_columns=self._value("label_cols"),
                feature_columns=self._value("feature_cols"),
                validation=self._value("validation"),
                sample_weight_col=self._value("sample_weight_col"),
                compress_sparse=self._value("compress_sparse_cols"),
                partitions_per_process=self._value("partitions_per_process"),
                verbose=self._value("verbose")) as index:
            return self._train(backend, _prepare.get_dataset_properties(index), index)

    def _value(self, name: str) -> Any:
        return self.getOrDefault(getattr(self, name))

    def _check(self) -> None:
        """ValueError for what is missing or does not go together."""
        if self._value("model") is None:
            raise ValueError("Model parameter is required")
        if self._value("store") is None:
            raise ValueError("Store parameter is required: where data and checkpoints go")
        if not self._value("label_cols"):
            raise ValueError("Label columns are required: label_cols")
        if self._value("loss") is not None and self._value("loss_constructors") is not None:
            raise ValueError("only one of loss_constructors and loss parameters can be "
                             "specified at a time.")

    def _backend(self) -> Backend:
        backend, num_proc = self._value("backend"), self._value("num_proc")
        if backend is not None and num_proc is not None:
            raise ValueError('At most one of parameters "backend" and "num_proc" may be '
                             "specified")
        return backend or SparkBackend(num_proc)

    def _train(self, backend: Backend, properties: tuple, dataset_idx: Optional[int]) -> Any:
        train_rows, val_rows, metadata, _ = properties
        features = self._features(metadata)
        self._check_shapes(metadata, features)
        run_id = self._value("run_id") or f"pytorch_{int(time.time())}"
        task = self._task(backend.num_processes(), train_rows, val_rows, metadata, features,
                          run_id, dataset_idx)
        results = backend.run(self._trainer(), args=(task,), env={})
        return self._made(results[0], task, metadata)

    def _features(self, metadata: dict) -> List[str]:
        features = self._value("feature_cols")
        if features is not None:
            return features
        others = {*self._value("label_cols"), self._value("sample_weight_col")}
        return [name for name in metadata if name not in others]

    def _check_shapes(self, metadata: dict, features: List[str]) -> None:
        _prepare.check_shape_compatibility(
            metadata, features, self._value("label_cols"),
            input_shapes=self._value("input_shapes"),
            label_shapes=self._value("label_shapes"))

    def _task(self, size: int, train_rows: int, val_rows: int, metadata: dict,
              features: List[str], run_id: str, dataset_idx: Optional[int]) -> Dict[str, Any]:
        """What every training process gets; picklable."""
        store = self._value("store")
        batch = self._value("batch_size")
        val_batch = self._value("val_batch_size") or batch
        names = ("model", "optimizer", "loss", "loss_constructors", "loss_weights", "metrics",
                 "sample_weight_col", "gradient_compression", "label_cols", "label_shapes",
                 "input_shapes", "epochs", "verbose", "shuffle", "random_seed", "use_gpu",
                 "mp_start_method", "inmemory_cache_all", "callbacks", "transformation_fn",
                 "transformation_edit_fields", "transformation_removed_fields",
                 "train_reader_num_workers", "val_reader_num_workers", "reader_pool_type",
                 "data_module", *self._own_names)
        return {
            **{name: self._value(name) for name in names}, "feature_cols": features,
            "batch_size": batch, "val_batch_size": val_batch, "run_id": run_id,
            "store": store.to_remote(run_id, dataset_idx), "has_val": val_rows > 0,
            "train_steps": self._value("train_steps_per_epoch") or
            _prepare.steps(train_rows, batch, size, True),
            "val_steps": self._value("validation_steps_per_epoch") or
            _prepare.steps(val_rows, val_batch, size, False),
            "formats": {name: about["shape"] for name, about in metadata.items()
                        if about["intermediate_format"] == "custom_sparse_format"},
            "checkpoint": self._checkpoint(store, run_id)}

    _own_names: tuple = ()

    def _checkpoint(self, store: Any, run_id: str) -> Optional[bytes]:
        """What an existing run goes on from."""
        raise NotImplementedError()

    def _trainer(self) -> Any:
        raise NotImplementedError()

    def _made(self, result: Any, task: dict, metadata: dict) -> Any:
        raise NotImplementedError()

    def _handed_on(self, task: Dict[str, Any], metadata: dict) -> Dict[str, Any]:
        """What a model keeps of the estimator that made it."""
        return {"run_id": task["run_id"], "feature_columns": task["feature_cols"],
                "label_columns": task["label_cols"], "_metadata": metadata,
                **{name: self._value(name) for name in ("input_shapes", "loss",
                                                        "loss_constructors")}}


class HorovodModel(Model, ModelParams, Persistent):
    """A transformer that adds predictions."""

    def transform(self, dataset: Any, params: Optional[Dict] = None) -> Any:
        return super().transform(dataset, params)

    def getOutputCols(self) -> List[str]:
        """The names of the predictions."""
        given = self.getOrDefault(self.output_cols)                 # type: ignore[attr-defined]
        labels = self.getOrDefault(self.label_columns)              # type: ignore[attr-defined]
        return given or [f"{label}__output" for label in labels]
