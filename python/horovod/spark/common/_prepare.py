"""From a DataFrame to the Parquet files that the ranks read.

1. Everything is done by Spark's own expressions, never by Python code per row.
2. A frame is written once: while the same frame is trained on again, its files are used
   again.  A directory that is in use is not overwritten: the next free number is taken.
"""
import contextlib
import json
import math
import threading
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

from horovod.common.advice import advised

_VALIDATION_SEED = 1            # the same rows for the same frame
_NOCHANGE, _ARRAY, _PACKED = "nochange", "array", "custom_sparse_format"


class _Dataset:
    def __init__(self, key: tuple, df: Any) -> None:
        self.key, self.df = key, df             # df: an id is used again when it has gone
        self.users = 0
        self.properties: Optional[tuple] = None


_lock = threading.Lock()                        # guards _datasets and users
_datasets: Dict[int, _Dataset] = {}


def clear_training_cache() -> None:
    """Forgets which frames have been written; nothing is deleted."""
    with _lock:
        for index in [i for i, d in _datasets.items() if d.users == 0]:
            del _datasets[index]


def _columns_of(df: Any, labels: Sequence[str], features: Optional[Sequence[str]],
                weight: Optional[str], validation: Any) -> Tuple[List[str], List[str]]:
    if not labels:
        raise ValueError("Label columns are required: label_cols")
    extra = [c for c in (weight, validation if isinstance(validation, str) else None) if c]
    if features is None:
        features = [c for c in df.columns if c not in set(labels) | set(extra)]
    missing = [c for c in [*features, *labels, *extra] if c not in df.columns]
    if missing:
        raise ValueError(advised(
            f"Columns {missing} are not in the DataFrame; it has {df.columns}"))
    return list(features), list(dict.fromkeys([*features, *labels, *extra]))


def _is_vector(field: Any) -> bool:
    return type(field.dataType).__name__ == "VectorUDT"


def _arrays(df: Any) -> Tuple[Any, Dict[str, str]]:
    """The frame with arrays instead of vectors, and the format of each column."""
    from pyspark.ml.functions import vector_to_array
    formats = {f.name: _ARRAY if _is_vector(f) else _NOCHANGE for f in df.schema.fields}
    return df.select(*[vector_to_array(f.name).alias(f.name) if _is_vector(f) else df[f.name]
                       for f in df.schema.fields]), formats


def _sizes(df: Any, columns: List[str]) -> Dict[str, int]:
    """The number of elements of array columns."""
    from pyspark.sql import functions as F
    arrays = [c for c in columns if df.schema[c].dataType.typeName() == "array"]
    if not arrays:
        return {}
    wanted = []
    for i, c in enumerate(arrays):
        wanted += [F.min(F.size(c)).alias(f"low{i}"), F.max(F.size(c)).alias(f"high{i}")]
    row = df.agg(*wanted).first()
    result = {}
    for i, c in enumerate(arrays):
        low, high = row[f"low{i}"], row[f"high{i}"]
        if low is not None and low != high:
            raise ValueError(advised(
                f"Column {c} does not have uniform shape: Rows of column {c} have "
                f"varying sizes, {low} to {high}"))
        result[c] = high or 0
    return result


def _nonzero(column: str) -> Any:
    from pyspark.sql import functions as F
    indices = F.sequence(F.lit(0), F.size(column) - 1)
    return F.filter(indices, lambda i: F.col(column)[i] != 0.0)


def _pack(df: Any, column: str, size: int) -> Tuple[Any, int]:
    """The column as [count, indices..., values..., zeros...], and its width; 0: not worth it."""
    from pyspark.sql import functions as F
    most = df.agg(F.max(F.size(_nonzero(column)))).first()[0] or 0
    if 2 * most + 1 >= size:
        return df, 0
    places = _nonzero(column)
    packed = F.concat(
        F.array(F.size(places).cast("double")),
        F.transform(places, lambda i: i.cast("double")),
        F.transform(places, lambda i: F.col(column)[i]),
        F.array_repeat(F.lit(0.0), 2 * (F.lit(most) - F.size(places))))
    return df.withColumn(column, packed), 2 * most + 1


def _split(df: Any, validation: Any) -> Tuple[Any, Any, float]:
    """(training, validation or None, part of the rows that validate)."""
    from pyspark.sql import functions as F
    if not validation:
        return df, None, 0.0
    if isinstance(validation, str):
        kind = df.schema[validation].dataType.typeName()
        marked = F.col(validation) if kind == "boolean" else F.col(validation) > 0
        marked = F.coalesce(marked, F.lit(False))
        total, chosen = df.agg(F.count(F.lit(1)), F.sum(marked.cast("long"))).first()
        return (df.filter(~marked).drop(validation), df.filter(marked).drop(validation),
                (chosen or 0) / max(total, 1))
    train, val = df.randomSplit([1.0 - validation, float(validation)], seed=_VALIDATION_SEED)
    return train, val, float(validation)


def _write(df: Any, path: str, files: int) -> None:
    df.coalesce(files).write.mode("overwrite").parquet(path)


def _rows_and_bytes(store: Any, path: str) -> Tuple[int, int]:
    rows = size = 0
    for fragment in store.get_parquet_dataset(path).get_fragments():
        for group in fragment.row_groups:
            rows += group.num_rows
            size += group.total_byte_size
    return rows, size


def _materialise(index: int, num_processes: int, store: Any, df: Any, labels: Sequence[str],
                 features: Optional[Sequence[str]], validation: Any, weight: Optional[str],
                 compress_sparse: bool, partitions_per_process: int) -> tuple:
    _, columns = _columns_of(df, labels, features, weight, validation)
    types = {f.name: f.dataType for f in df.schema.fields}
    df, formats = _arrays(df.select(*columns))
    sizes = _sizes(df, columns)
    widths = {}
    for column in [c for c in columns if compress_sparse and formats[c] == _ARRAY]:
        df, width = _pack(df, column, sizes[column])
        if width:
            formats[column], widths[column] = _PACKED, width
    train, val, part = _split(df, validation)
    files = num_processes * partitions_per_process
    train_path, val_path = store.get_train_data_path(index), store.get_val_data_path(index)
    _write(train, train_path, max(num_processes, round(files * (1 - part))))
    rows, size = _rows_and_bytes(store, train_path)
    if rows == 0:
        raise ValueError(advised(f"No rows found in training dataset: {train_path}"))
    val_rows = 0
    if val is not None:
        _write(val, val_path, max(num_processes, round(files * part)))
        val_rows = _rows_and_bytes(store, val_path)[0]
        if val_rows == 0:
            raise ValueError("Validation DataFrame is empty with validation param: "
                             f"{validation}")
    metadata = {c: {"spark_data_type": types[c], "is_sparse_vector_only": c in widths,
                    "shape": sizes.get(c, 1), "intermediate_format": formats[c],
                    "max_size": widths.get(c, sizes.get(c, 1))}
                for c in columns if c != validation}
    store.write_text(store.get_data_metadata_path(train_path), json.dumps(
        {"rows": rows, "bytes": size, "columns": {c: formats[c] for c in metadata}}))
    return rows, val_rows, metadata, size / rows


@contextlib.contextmanager
def prepare_data(num_processes: int, store: Any, df: Any, label_columns: Sequence[str],
                 feature_columns: Optional[Sequence[str]], validation: Any = None,
                 sample_weight_col: Optional[str] = None, compress_sparse: bool = False,
                 partitions_per_process: int = 10, verbose: int = 0) -> Iterator[int]:
    """Writes a frame into the store; gives the number of the dataset while it is used."""
    wanted = (tuple(label_columns or ()), tuple(feature_columns or ()), sample_weight_col,
              compress_sparse)
    key = (id(df), df.semanticHash(), store.get_train_data_path(), store.get_val_data_path(),
           validation, wanted)
    with _lock:
        index = next((i for i, d in _datasets.items() if d.key == key and d.properties), None)
        if index is None or not store.is_parquet_dataset(store.get_train_data_path(index)):
            index = next(i for i in range(len(_datasets) + 1)
                         if i not in _datasets or _datasets[i].users == 0)
            _datasets[index] = _Dataset(key, df)
        dataset = _datasets[index]
        dataset.users += 1
    try:
        if dataset.properties is None:
            dataset.properties = _materialise(
                index, num_processes, store, df, label_columns, feature_columns, validation,
                sample_weight_col, compress_sparse, partitions_per_process)
        yield index
    finally:
        with _lock:
            dataset.users -= 1


def get_dataset_properties(dataset_idx: int) -> tuple:
    """(train_rows, val_rows, metadata, avg_row_size) of a dataset that is in use."""
    properties = _datasets[dataset_idx].properties
    assert properties is not None
    return properties


def get_simple_meta_from_parquet(store: Any, label_columns: Sequence[str],
                                 feature_columns: Optional[Sequence[str]] = None,
                                 sample_weight_col: Optional[str] = None,
                                 dataset_idx: Optional[int] = None) -> tuple:
    """The same of Parquet files that somebody else has written; shapes are not known."""
    train_path, val_path = (store.get_train_data_path(dataset_idx),
                            store.get_val_data_path(dataset_idx))
    if not store.is_parquet_dataset(train_path):
        raise ValueError(f"{train_path} is not a parquet dataset")
    rows, size = _rows_and_bytes(store, train_path)
    if rows == 0:
        raise ValueError(advised(f"No rows found in training dataset: {train_path}"))
    schema = store.get_parquet_dataset(train_path).schema
    chosen = list(feature_columns) if feature_columns is not None else \
        [name for name in schema.names if name not in set(label_columns)]
    wanted = list(dict.fromkeys([*chosen, *label_columns,
                                 *([sample_weight_col] if sample_weight_col else [])]))
    missing = [name for name in wanted if name not in schema.names]
    if missing:
        raise ValueError(f"Columns {missing} are not in {train_path}; it has {schema.names}")
    metadata = {name: {"spark_data_type": _spark_type(schema.field(name).type),
                       "is_sparse_vector_only": False, "shape": None,
                       "intermediate_format": _NOCHANGE, "max_size": None}
                for name in wanted}
    val_rows = _rows_and_bytes(store, val_path)[0] if store.is_parquet_dataset(val_path) else 0
    return rows, val_rows, metadata, size / rows


def _spark_type(arrow_type: Any) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type
    return from_arrow_type(arrow_type)


# ---- Checks and steps -----------------------------------------------------------------------

def _elements(shape: Sequence[int]) -> int:
    return abs(math.prod(shape))


def check_shape_compatibility(metadata: Dict[str, dict], feature_columns: Sequence[str],
                              label_columns: Sequence[str],
                              input_shapes: Optional[Sequence] = None,
                              output_shapes: Optional[Sequence] = None,
                              label_shapes: Optional[Sequence] = None) -> None:
    """ValueError if a column has another number of elements than the shape for it."""
    for kind, columns, shapes in (("feature", feature_columns, input_shapes),
                                  ("label", label_columns, label_shapes or output_shapes)):
        if shapes is None:
            continue
        what = "input" if kind == "feature" else "output" if not label_shapes else "label"
        if len(columns) != len(shapes):
            raise ValueError(f"{kind.capitalize()} column count {len(columns)} must equal {what} "
                             f"shapes count {len(shapes)}")
        for index, (column, shape) in enumerate(zip(columns, shapes)):
            size = metadata[column]["shape"]
            if size is not None and size != _elements(shape):
                raise ValueError(f"{kind.capitalize()} column '{column}' with size {size} must "
                                 f"equal that of the model {what} shape {shape} at index "
                                 f"{index} (size {_elements(shape)})")


def steps(rows: int, batch_size: int, size: int, training: bool) -> int:
    """Batches per epoch, the same on all ranks; at least one."""
    whole = rows / batch_size / size
    return max(1, math.floor(whole) if training else math.ceil(whole))
