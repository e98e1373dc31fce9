"""The data module of the estimator for Lightning."""
import functools
from typing import Any, Dict, Iterator

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.spark.common.datamodule import ParquetDataModule


class _AheadLoader(AsyncDataLoaderMixin, BaseDataLoader):
    """Batches of a loader, made by a thread."""

    def __init__(self, loader: Any, queue_size: int, debug: bool) -> None:
        self._loader = loader
        super().__init__(queue_size, debug)

    def __len__(self) -> int:
        return len(self._loader)

    def _iterate(self) -> Iterator[Dict[str, Any]]:
        return iter(self._loader)


@functools.lru_cache(maxsize=None)
def data_module_class(package: Any) -> type:
    """``package`` is lightning.pytorch or pytorch_lightning."""
    class HorovodDataModule(package.LightningDataModule):       # type: ignore[name-defined]
        """Reads the store's Parquet files."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__()
            self._kwargs = kwargs
            self._data = ParquetDataModule(**kwargs)
            self._ahead: list = []

        def _loader(self, loader: Any, name: str) -> Any:
            size = self._kwargs.get(name)
            if not size:
                return loader
            ahead = _AheadLoader(loader, size, self._kwargs.get("debug_data_loader", False))
            self._ahead.append(ahead)
            return ahead

        def train_dataloader(self) -> Any:
            return self._loader(self._data.train_data(), "train_async_data_loader_queue_size")

        def val_dataloader(self) -> Any:
            data = self._data.val_data()
            return [] if data is None else \
                self._loader(data, "val_async_data_loader_queue_size")

        def teardown(self, stage: Any = None) -> None:
            for loader in self._ahead:
                loader.close_async_loader()
            self._ahead = []

    return HorovodDataModule
