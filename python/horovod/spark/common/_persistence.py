"""Saving and loading estimators and models by Spark ML.

All values go into the metadata as one cloudpickle, so that an optimizer still holds the
parameters of its model, and classes of ``__main__`` travel by value.  Store and backend are
never saved.
"""
from typing import Any

import pyspark
from pyspark.ml.util import (DefaultParamsReader, DefaultParamsWriter, MLReadable, MLReader,
                             MLWritable, MLWriter)

from horovod.runner.common.util import codec

_NEVER = ("store", "backend")


def _place(worker: Any) -> Any:
    """What Spark's helpers take: a session from 4.0 on, a context before."""
    return worker.sparkSession if int(pyspark.__version__.split(".")[0]) >= 4 else worker.sc


class _Writer(MLWriter):
    def __init__(self, instance: Any) -> None:
        super().__init__()
        self.instance = instance

    def saveImpl(self, path: str) -> None:
        values = {param.name: value for param, value in self.instance._paramMap.items()
                  if param.name not in _NEVER}
        DefaultParamsWriter.saveMetadata(self.instance, path, _place(self),
                                         paramMap={"values": codec.dumps_base64(values)})


class _Reader(MLReader):
    def __init__(self, cls: type) -> None:
        super().__init__()
        self.cls = cls

    def load(self, path: str) -> Any:
        metadata = DefaultParamsReader.loadMetadata(path, _place(self))
        instance = self.cls()
        instance._resetUid(metadata["uid"])
        values = codec.loads_base64(metadata["paramMap"]["values"])
        return instance._set_checked(**values)


class Persistent(MLReadable, MLWritable):
    """``write().save(path)``, ``load(path)``.  Load only what you trust: it is unpickled."""

    def write(self) -> Any:
        return _Writer(self)

    @classmethod
    def read(cls) -> Any:
        return _Reader(cls)
