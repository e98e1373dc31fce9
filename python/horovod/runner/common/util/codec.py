"""Functions and results as bytes.  The only place of the launcher that unpickles, and only
what came over a private channel: an inherited descriptor or ssh.

Imported by: horovod.runner, horovod.spark; programs written for Horovod 0.28.
"""
import base64
from typing import Any

import cloudpickle


def dumps(obj: Any) -> bytes:
    """The object, with functions of ``__main__`` and closures by value."""
    return cloudpickle.dumps(obj)


def loads(data: bytes) -> Any:
    """The object of bytes whose sender is trusted."""
    return cloudpickle.loads(data)


def dumps_base64(obj: Any, to_ascii: bool = True) -> Any:
    """``dumps`` as text (or ASCII bytes)."""
    encoded = base64.b64encode(dumps(obj))
    return encoded.decode("ascii") if to_ascii else encoded


def loads_base64(encoded: Any) -> Any:
    """The object of ``dumps_base64``."""
    return loads(base64.b64decode(encoded))
