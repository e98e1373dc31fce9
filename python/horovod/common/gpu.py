"""What the core can do with GPUs here, without a framework.

The core loads CUDA and NCCL at run time.  A library that is in the process already (that of
torch, for one) is taken first; ``directories`` are those of the packages that torch comes with.
"""
import importlib.util
import pathlib
from typing import List, NamedTuple

from horovod import _core

_told = False


class Libraries(NamedTuple):
    """What was loaded; ``backend`` is ``"nccl"``, ``"host"`` or ``"none"``."""
    backend: str
    nccl_version: int
    driver: str
    nccl: str
    reason: str


def directories() -> List[str]:
    """Where pip puts NVIDIA's libraries."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return [str(path) for place in places
            for part in ("nccl", "cuda_runtime", "cu13", "cu12")
            for path in [pathlib.Path(place) / part / "lib"] if path.is_dir()]


def _tell() -> None:
    global _told
    if not _told:
        _told = True
        _core.gpu_search(":".join(directories()))


def libraries() -> Libraries:
    """Loads what there is; does not initialise CUDA."""
    _tell()
    return Libraries(*_core.gpu_info())


def nccl_version() -> int:
    """Of the NCCL that the core uses, 21805 for 2.18.5; 0 without."""
    _tell()
    return _core.nccl_version()
