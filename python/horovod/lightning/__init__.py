"""Horovod for PyTorch Lightning 2.

    trainer = Trainer(strategy="horovod")                       # started with horovodrun

or, with options:

    from horovod.lightning import HorovodStrategy
    trainer = Trainer(strategy=HorovodStrategy(scale_lr=False))

``lightning`` and ``pytorch_lightning`` are two packages with classes of their own.  The names
here are for the one that the program has imported, ``lightning`` if it has both; those of
a certain one are ``classes("pytorch_lightning").HorovodStrategy`` and so on.  Importing this
module imports neither of them.
"""
import importlib
import importlib.util
import sys
import types
from typing import Any

from horovod import _startup

__all__ = ["HorovodEnvironment", "HorovodFabricStrategy", "HorovodStrategy", "classes",
           "register"]

_MODULES = {"lightning": "_l", "pytorch_lightning": "_pl"}
_FABRIC = {"lightning": "_l_fabric", "pytorch_lightning": "_pl_fabric"}


def register() -> None:
    """Makes the names "horovod", "horovod_fp16" and "horovod_adasum" known to the Lightning
    packages that are imported, now or later.  Importing horovod does this."""
    _startup.install()


def classes(package: str) -> types.SimpleNamespace:
    """The classes for "lightning" or for "pytorch_lightning"."""
    if package not in _MODULES:
        raise ValueError(f"package must be one of {', '.join(_MODULES)}, not {package!r}")
    return types.SimpleNamespace(
        HorovodStrategy=_attribute(package, "HorovodStrategy"),
        HorovodFabricStrategy=_attribute(package, "HorovodFabricStrategy"),
        HorovodEnvironment=_attribute(package, "HorovodEnvironment"))


def _attribute(package: str, name: str) -> Any:
    module = (_MODULES if name == "HorovodStrategy" else _FABRIC)[package]
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:                  # a name that was blocked, or is only half imported
        return False


def _package() -> str:
    """The Lightning this program uses."""
    for loaded, package in (("lightning.pytorch", "lightning"),
                            ("lightning.fabric", "lightning"),
                            ("pytorch_lightning", "pytorch_lightning"),
                            ("lightning_fabric", "pytorch_lightning")):
        if sys.modules.get(loaded) is not None:
            return package
    for package in _MODULES:
        if _is_installed(package):
            return package
    from horovod.common.advice import advised
    raise ModuleNotFoundError(advised(
        "horovod.lightning needs lightning or pytorch_lightning: "
        "pip install 'horovod[lightning]'"), name="lightning")


def __getattr__(name: str) -> Any:
    if name in ("HorovodEnvironment", "HorovodFabricStrategy", "HorovodStrategy"):
        return _attribute(_package(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
