"""Predictions: a column per label, by a pandas UDF that takes batches of the features."""
import logging
from typing import Any, Dict, Iterator, List, Optional, Tuple

from horovod.runner.common.util import codec
from horovod.spark.common.estimator import HorovodModel
from horovod.spark.common.params import with_params

log = logging.getLogger("horovod.spark")
_INTEGERS = ("byte", "short", "integer", "long", "int", "bigint", "smallint", "tinyint")


def _is_vector(kind: Any) -> bool:
    return type(kind).__name__ == "VectorUDT"


class _Predictor:
    """What runs where the rows are; the model is unpacked once per process."""

    def __init__(self, payload: Any, features: List[str], shapes: Optional[List],
                 outputs: int, vectors: List[bool]) -> None:
        self._payload, self._features, self._shapes = payload, features, shapes
        self._outputs, self._vectors = outputs, vectors
        self._model: Any = None

    def __call__(self, batches: Iterator[tuple]) -> Iterator[Any]:
        import torch
        if self._model is None:
            self._model = codec.loads(self._payload.value)
            self._model.eval()
        with torch.no_grad():
            for series in batches:
                yield self._predict(series)

    def _predict(self, series: tuple) -> Any:
        import pandas
        from horovod.spark.common._reader import _of_series, to_tensors
        from horovod.spark.torch._train import as_inputs, dtype_of
        if len(series[0]) == 0:
            return pandas.DataFrame({f"o{i}": [] for i in range(self._outputs)})
        batch = to_tensors({name: _of_series(column)
                            for name, column in zip(self._features, series)})
        inputs = as_inputs(batch, self._features, self._shapes, dtype_of(self._model), "cpu")
        outputs = self._model(*inputs)
        outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        if len(outputs) != self._outputs:
            raise ValueError(f"the model gives {len(outputs)} outputs for {self._outputs} labels")
        columns = {}
        for i, output in enumerate(outputs):
            values = output.detach().double().reshape(len(series[0]), -1).numpy()
            columns[f"o{i}"] = list(values) if self._vectors[i] else values[:, 0]
        return pandas.DataFrame(columns)


@with_params([
    ("input_shapes", None, "a shape per feature"),
    ("optimizer", None, "the optimizer of the training"),
    ("loss", None, "as it was given"),
    ("loss_constructors", None, "as they were given"),
])
class PredictingModel(HorovodModel):
    """A model whose features go to ``forward`` by position."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._begin(kwargs)

    def _widths(self, labels: List[str], features: List[str]) -> Optional[List[int]]:
        """The elements of each output, found with one row of zeros; None: not known."""
        import torch
        from horovod.spark.torch._train import as_inputs, dtype_of
        metadata = self.get_metadata() or {}
        model = self.getModel()                                     # type: ignore[attr-defined]
        shapes = self.getInputShapes()                              # type: ignore[attr-defined]
        try:
            sizes = {name: int((metadata.get(name) or {}).get("shape") or 1)
                     for name in features}
            batch = {name: torch.zeros((1, size) if size > 1 else (1,), dtype=dtype_of(model))
                     for name, size in sizes.items()}
            was_training = model.training
            model.eval()
            try:
                with torch.no_grad():
                    outputs = model(*as_inputs(batch, features, shapes, dtype_of(model), "cpu"))
            finally:
                model.train(was_training)
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            return [output.numel() for output in outputs]
        except Exception as e:
            log.debug("the outputs of the model are not known in advance: %s", e)
            return None

    def _transform(self, dataset: Any) -> Any:
        features = self.getFeatureColumns()                         # type: ignore[attr-defined]
        labels = self.getLabelColumns()                             # type: ignore[attr-defined]
        names = self.getOutputCols()
        if len(names) != len(labels):
            raise ValueError(f"{len(names)} output columns for {len(labels)} labels")
        taken = [name for name in names if name in dataset.columns]
        if taken:
            raise ValueError(f"the DataFrame already has columns {taken}; see setOutputCols")
        widths = self._widths(labels, features)
        if widths is not None and len(widths) != len(labels):
            raise ValueError(f"the model gives {len(widths)} outputs for {len(labels)} labels")
        kinds = [self._type_of(label, dataset) for label in labels]
        vectors = [_is_vector(kind) or (widths is not None and widths[i] > 1)
                   for i, kind in enumerate(kinds)]
        predicted = dataset.withColumn("__horovod_outputs", self._column(
            dataset, features, len(labels), vectors))
        columns = [_final(f"__horovod_outputs.o{i}", kinds[i], vectors[i]).alias(name)
                   for i, name in enumerate(names)]
        return predicted.select(*dataset.columns, *columns)

    def _type_of(self, label: str, dataset: Any) -> Any:
        from pyspark.sql.types import DoubleType
        if label in dataset.columns:
            return dataset.schema[label].dataType
        about: Dict[str, Any] = (self.get_metadata() or {}).get(label) or {}
        return about.get("spark_data_type") or DoubleType()

    def _column(self, dataset: Any, features: List[str], count: int,
                vectors: List[bool]) -> Any:
        from pyspark.ml.functions import vector_to_array
        from pyspark.sql.functions import pandas_udf
        from pyspark.sql.types import ArrayType, DoubleType, StructField, StructType
        kind = StructType([StructField(f"o{i}", ArrayType(DoubleType()) if vectors[i]
                                       else DoubleType()) for i in range(count)])
        model = self.getModel()                                     # type: ignore[attr-defined]
        payload = dataset.sparkSession.sparkContext.broadcast(codec.dumps(model))
        shapes = self.getInputShapes()                              # type: ignore[attr-defined]
        predictor = _Predictor(payload, features, shapes, count, vectors)

        inputs = [vector_to_array(name) if _is_vector(dataset.schema[name].dataType)
                  else dataset[name] for name in features]
        return pandas_udf(_typed(predictor, len(inputs)), kind)(*inputs)


def _typed(predictor: _Predictor, inputs: int) -> Any:
    """The predictor as a function whose annotations tell Spark what it takes and gives."""
    import pandas

    def predict(batches):                           # type: ignore[no-untyped-def]
        return predictor(batches if inputs > 1 else ((series,) for series in batches))

    series = pandas.Series
    predict.__annotations__ = {
        "batches": Iterator[Tuple[series, ...]] if inputs > 1       # type: ignore[valid-type]
        else Iterator[series],                                      # type: ignore[valid-type]
        "return": Iterator[pandas.DataFrame]}
    return predict


def _final(name: str, kind: Any, is_vector: bool) -> Any:
    """The output in the type of its label."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as F
    column = F.col(name)
    if is_vector:
        if kind.typeName() == "array":
            return column.cast(kind)
        return array_to_vector(column)
    if kind.typeName() in _INTEGERS:
        return F.round(column).cast(kind)
    return column.cast(kind)
