"""Data loaders that work ahead of the training."""
from horovod.data.data_loader_base import AsyncDataLoaderMixin, BaseDataLoader

__all__ = ["BaseDataLoader", "AsyncDataLoaderMixin"]
