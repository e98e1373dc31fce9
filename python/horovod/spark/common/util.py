"""Helpers of the estimators; nothing heavy is imported before it is used."""
import os
from typing import Any

from horovod.runner.common.util import host_hash as _host_hash

_PREPARE = ("prepare_data", "get_dataset_properties", "get_simple_meta_from_parquet",
            "clear_training_cache", "check_shape_compatibility")


def host_hash(salt: Any = None) -> str:
    """A name for this host; a YARN container is a host of its own."""
    container = os.environ.get("CONTAINER_ID")
    parts = [str(part) for part in (container, salt) if part]
    return _host_hash.host_hash("-".join(parts) if parts else None)


def to_list(value: Any, length: int) -> Any:
    """A list of this length: a single value as often, a list as it is."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        return [value] * length
    if len(value) == 1 and length > 1:
        return list(value) * length
    if len(value) != length:
        raise ValueError(f"a list of {length} values is needed, not of {len(value)}")
    return list(value)


def __getattr__(name: str) -> Any:
    if name in _PREPARE:
        from horovod.spark.common import _prepare
        return getattr(_prepare, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
