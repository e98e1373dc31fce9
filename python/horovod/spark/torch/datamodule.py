"""Data modules that users name."""
import logging
from typing import Any

from horovod.spark.common.datamodule import ParquetDataModule


class PetastormDataModule(ParquetDataModule):
    """The name by which scripts ask for the reader of Parquet files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        logging.getLogger("horovod.spark").info(
            "PetastormDataModule reads with pyarrow.dataset; petastorm is not used")
        super().__init__(*args, **kwargs)


class NVTabularDataModule(ParquetDataModule):
    """Needs NVTabular, which is not part of this package."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ImportError("NVTabularDataModule needs NVTabular and a GPU, which Horovod does not "
                          "bring; leave data_module away to read with pyarrow.dataset")
