"""The devices that tests can have, by name.

late     tensors of streams.Late, which the core does not know: they take the Python way through
         host memory
standin  tensors of the CUDA driver's stand-in, handed over to the core
"""
import contextlib
import os
import subprocess
from unittest import mock

from gpu import dlpack
from gpu.device import Device
from gpu.streams import Late, StandIn
from horovod.torch import _gpu, _submit
from launch import ROOT

SOURCES = ROOT / "tests" / "gpu"


@contextlib.contextmanager
def installed(kind, everything=True):
    """The device, while it is installed."""
    if kind == "late":
        seed = int(os.environ.get("STANDIN_SEED", "0"))
        with mock.patch.object(_gpu, "_settled", _gpu.Host()), \
                Device(Late(seed), everything).installed() as device:
            yield device
        return
    with mock.patch.object(_submit, "_from_dlpack", dlpack.from_dlpack), \
            Device(StandIn(), everything).installed() as device:
        yield device


def environment(folder):
    """Compiles the stand-ins; what ranks need to use them."""
    libraries = {}
    for name in ("cuda", "nccl"):
        library = libraries[name] = folder / f"libhvd_standin_{name}.so"
        subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-shared",
                        "-fPIC",
                        f"-I{ROOT / 'src'}", f"-I{ROOT / 'include'}", "-o", str(library),
                        str(SOURCES / f"standin_{name}.c"), "-lpthread",
                        *([str(libraries["cuda"])] if name == "nccl" else [])], check=True)
    return {"HVD_TEST_DEVICE": "standin", "HOROVOD_CUDART_LIBRARY": str(libraries["cuda"]),
            "HOROVOD_NCCL_LIBRARY": str(libraries["nccl"])}
