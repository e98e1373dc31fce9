"""Errors that are raised in Python carry the number of their entry in docs/troubleshooting.md,
as those of the core do; src/base/advice.def says which text has which number."""
from horovod import _core


def advised(text: str) -> str:
    """The text, with its number behind it if it has one: ``... [HVD-401, docs/...]``."""
    return _core.error_show(text)
