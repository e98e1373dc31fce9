"""Our trainer under Ray's own names: ``from ray.train.horovod import HorovodTrainer``.

Ray Train V2 has a stand-in there that refuses to be built.  A finder, installed by
``import horovod.ray``, answers for the modules of Ray that hold it.

1. ``ray.train.horovod`` always imports ``horovod.ray.runner`` before it asks for one of
   these modules, so the finder is there in time whatever was imported first.
2. It answers only while Ray Train V2 is switched on; under V1 Ray's own trainer serves.
3. Nothing of Ray Train is imported before somebody asks for one of the names.
4. The package has taken its ``HorovodConfig`` from Ray's file by then; it gets ours when
   the last of the modules is loaded.  ``ray.train.horovod.config`` itself stays Ray's, and
   the trainer converts objects of its class.
"""
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, Optional

_PACKAGE = "ray.train.horovod"
_NAMES = {"ray.train.v2.horovod.horovod_trainer", _PACKAGE + ".horovod_trainer"}


class _Loader(importlib.abc.Loader):

    def exec_module(self, module: ModuleType) -> None:
        from horovod.ray import train
        vars(module).update(HorovodTrainer=train.HorovodTrainer,
                            HorovodConfig=train.HorovodConfig,
                            __all__=["HorovodTrainer", "HorovodConfig"])
        package = sys.modules.get(_PACKAGE)
        if package is not None:
            vars(package)["HorovodConfig"] = train.HorovodConfig


class _Finder(importlib.abc.MetaPathFinder):

    def find_spec(self, name: str, path: Any = None,
                  target: Optional[ModuleType] = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in _NAMES or not _is_v2():
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), origin="horovod.ray.train")


def _is_v2() -> bool:
    try:
        from ray.train.v2._internal.constants import is_v2_enabled
    except ImportError:             # a Ray without V2: there is nothing to replace
        return False
    return is_v2_enabled()


def install() -> None:
    """Puts the finder in front; again is harmless."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
