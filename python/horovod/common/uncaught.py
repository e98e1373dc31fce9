"""An exception that ends this rank is told to the others, with its text and its place.

Without this they would learn that the rank has left the job, and not why: the reason stands
in another stream, perhaps on another host, above the echo of all the others.
"""
import os
import sys
import types
from typing import Any, Type

from horovod import _core
from horovod.common.exceptions import HorovodInternalError

_installed = False


def install() -> None:
    """Once per process, in front of whatever ``sys.excepthook`` is."""
    global _installed
    if _installed:
        return
    _installed = True
    inner = sys.excepthook

    def excepthook(kind: Type[BaseException], value: BaseException, trace: Any) -> None:
        inner(kind, value, trace)
        if not _goes_on():
            tell(value, trace)

    sys.excepthook = excepthook


def tell(value: BaseException, trace: Any) -> None:
    """Ends the job for all ranks with this reason, unless it is but the echo of one."""
    if not isinstance(value, HorovodInternalError) and _core.is_initialized():
        _core.abort(f"uncaught {summary(value, trace)}")


def _goes_on() -> bool:
    """Whether this process lives on after an exception: at a prompt."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def summary(value: BaseException, trace: Any) -> str:
    """``ValueError: no such sample (train.py:41 in load)``: the innermost line that is not
    of an installed package."""
    try:
        text = str(value).strip().partition("\n")[0]
    except Exception:                   # as Python itself shows such an exception
        text = "<exception str() failed>"
    place = None
    while isinstance(trace, types.TracebackType):
        code = trace.tb_frame.f_code
        if place is None or not _is_installed(code.co_filename):
            place = f"{os.path.basename(code.co_filename)}:{trace.tb_lineno} in {code.co_name}"
        trace = trace.tb_next
    return (f"{type(value).__name__}: {text}"[:400].rstrip(": ") +
            (f" ({place})" if place else ""))


def _is_installed(path: str) -> bool:
    return path.startswith((sys.prefix, sys.base_prefix, "<frozen")) or \
        "site-packages" in path or "dist-packages" in path
