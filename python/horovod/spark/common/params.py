"""Parameters of estimators and models, as Spark ML knows them.

A row of a table makes the Param, its default, its setter and its getter: ("batch_size", 32,
text) gives ``setBatchSize`` and ``getBatchSize``.
"""
from typing import Any, Callable, Optional, Sequence

from pyspark.ml.param import Param, Params

REQUIRED = object()             # no default: asking for it is an error until it is set


def to_list(value: Any) -> Any:
    """A single name as a list of one."""
    return [value] if isinstance(value, str) else list(value) if value is not None else None


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _setter(name: str) -> Callable:
    def set_value(self: Any, value: Any) -> Any:
        return self._set_checked(**{name: value})
    set_value.__doc__ = f"Sets ``{name}``."
    return set_value


def _getter(name: str) -> Callable:
    def get_value(self: Any) -> Any:
        return self.getOrDefault(getattr(self, name))
    get_value.__doc__ = f"The value of ``{name}``."
    return get_value


def with_params(rows: Sequence[tuple]) -> Callable[[type], type]:
    """Class decorator: gives the class the parameters of a table."""
    def decorate(cls: Any) -> type:
        cls._rows = {**getattr(cls, "_rows", {}), **{row[0]: row[1] for row in rows}}
        for name, _, text in rows:
            setattr(cls, name, Param(Params._dummy(), name, text))
            setattr(cls, "set" + _camel(name), _setter(name))
            setattr(cls, "get" + _camel(name), _getter(name))
        return cls
    return decorate


class HorovodParams(Params):
    """Keyword arguments as parameters, checked when they are set."""

    _rows: dict = {}
    _lists = ("feature_cols", "label_cols", "continuous_cols", "categorical_cols",
              "feature_columns", "label_columns", "output_cols")
    # name -> (whether a value is right, what it should be)
    _checks: dict = {}

    def _begin(self, given: dict) -> None:
        self._setDefault(**{name: value for name, value in self._rows.items()
                            if value is not REQUIRED})
        self._set_checked(**given)

    def setParams(self, **kwargs: Any) -> Any:
        """Several parameters at once."""
        return self._set_checked(**kwargs)

    def _set_checked(self, **given: Any) -> Any:
        for name, value in given.items():
            if name not in self._rows:
                raise TypeError(f"{type(self).__name__} has no parameter {name!r}")
            if name in self._lists:
                value = to_list(value)
            right, what = self._checks.get(name, (None, ""))
            if value is not None and right is not None and not right(value):
                raise ValueError(f"{name} must be {what}, not {value!r}")
            # Not _set: it drops None, with which a parameter is taken back.
            self._paramMap[getattr(self, name)] = value
        return self


def _is_validation(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, (int, float)) and 0 <= value < 1)


def _positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0


@with_params([
    ("num_proc", None, "number of processes"),
    ("backend", None, "runs the processes; instead of num_proc"),
    ("store", None, "where data, checkpoints and logs are kept"),
    ("model", None, "the module to train"),
    ("optimizer", None, "optimizer of the model's parameters"),
    ("loss", None, "a function, or one per label"),
    ("loss_constructors", None, "functions that make the losses"),
    ("loss_weights", None, "a weight per label"),
    ("metrics", [], "groups of functions: one for all labels, or one per label"),
    ("gradient_compression", None, "hvd.Compression"),
    ("feature_cols", None, "columns given to the model; None: all but the labels"),
    ("label_cols", None, "columns to predict"),
    ("continuous_cols", None, "continuous columns, for data modules of one's own"),
    ("categorical_cols", None, "categorical columns, for data modules of one's own"),
    ("sample_weight_col", None, "column with a weight per row"),
    ("validation", None, "part of the rows in [0, 1), or a column that marks them"),
    ("batch_size", 32, "rows per step and process"),
    ("val_batch_size", None, "the same in validation; None: batch_size"),
    ("epochs", 1, "passes over the data"),
    ("train_steps_per_epoch", None, "None: one pass over the data"),
    ("validation_steps_per_epoch", None, "None: one pass over the data"),
    ("shuffle", True, "whether training rows come in random order"),
    ("shuffle_buffer_size", None, "deprecated, without effect"),
    ("random_seed", None, "of the order of rows and of torch"),
    ("partitions_per_process", 10, "Parquet files per process"),
    ("run_id", None, "name of the run; one that exists is continued"),
    ("callbacks", [], "callbacks of the trainer"),
    ("verbose", 1, "0: quiet"),
    ("use_gpu", True, "use a GPU if there is one"),
    ("mp_start_method", None, "start method of multiprocessing in the processes"),
    ("inmemory_cache_all", False, "each process keeps its part of the data in memory"),
    ("label_shapes", None, "a shape per label"),
    ("compress_sparse_cols", False, "write sparse vectors in a packed form"),
    ("transformation_fn", None, "function on a batch as a pandas DataFrame"),
    ("transformation_edit_fields", None, "(name, numpy dtype, shape, nullable) it changes"),
    ("transformation_removed_fields", None, "columns it removes"),
    ("train_reader_num_workers", 2, "threads that read ahead"),
    ("val_reader_num_workers", 2, "the same in validation"),
    ("reader_pool_type", "thread", "thread, process or dummy"),
])
class EstimatorParams(HorovodParams):
    """What all estimators know."""

    _checks = {
        "validation": (_is_validation, "a number in [0, 1) or the name of a column"),
        "batch_size": (_positive, "a positive number"),
        "val_batch_size": (_positive, "a positive number"),
        "epochs": (_positive, "a positive number"),
        "num_proc": (_positive, "a positive number"),
        "partitions_per_process": (_positive, "a positive number"),
        "backward_passes_per_step": (_positive, "a positive number"),
        "reader_pool_type": (lambda value: value in ("thread", "process", "dummy"),
                             "thread, process or dummy"),
    }

    # Older spellings.
    def setTrainReaderNumWorker(self, value: Any) -> Any:
        return self._set_checked(train_reader_num_workers=value)

    def setValReaderNumWorker(self, value: Any) -> Any:
        return self._set_checked(val_reader_num_workers=value)

    def getTrainReaderNumWorker(self) -> Any:
        return self.getOrDefault(self.train_reader_num_workers)     # type: ignore[attr-defined]

    def getValReaderNumWorker(self) -> Any:
        return self.getOrDefault(self.val_reader_num_workers)       # type: ignore[attr-defined]

    def setShufflingBufferSize(self, value: Any) -> Any:
        return self._set_checked(shuffle_buffer_size=value)


@with_params([
    ("history", None, "what training has logged"),
    ("model", None, "the trained module"),
    ("feature_columns", None, "columns given to the model"),
    ("label_columns", None, "columns that were predicted"),
    ("output_cols", None, "names of the predictions; None: <label>__output"),
    ("run_id", None, "name of the run"),
    ("_metadata", None, "shapes and types of the columns"),
])
class ModelParams(HorovodParams):
    """What all models know."""

    def setLabelColoumns(self, value: Any) -> Any:
        """An older spelling of setLabelColumns."""
        return self._set_checked(label_columns=value)

    def get_metadata(self) -> Optional[dict]:
        return self.getOrDefault(self._metadata)                    # type: ignore[attr-defined]
