"""The real NCCL and CUDA packages have what src/gpu uses of them, by name, value and form.

They load without a driver, so that no GPU is needed for this.
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

from launch import ROOT

pytestmark = pytest.mark.long

NAMES = ROOT / "src" / "gpu" / "names.h"
PACKAGES = ("nvidia-nccl-cu12", "nvidia-cuda-runtime-cu12")

# Ours, theirs: of names.h, of nccl.h and cuda.h.
VALUES = [
    ("CUDA_OUT_OF_MEMORY", "CUDA_ERROR_OUT_OF_MEMORY"),
    ("CUDA_DEINITIALIZED", "CUDA_ERROR_DEINITIALIZED"), ("CUDA_NO_DEVICE", "CUDA_ERROR_NO_DEVICE"),
    ("CUDA_NOT_READY", "CUDA_ERROR_NOT_READY"),
    ("CUDA_ALREADY_REGISTERED", "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    ("CUDA_EVENT_NO_TIMING", "CU_EVENT_DISABLE_TIMING"),
    ("CUDA_STREAM_NON_BLOCKING", "CU_STREAM_NON_BLOCKING"),
    ("CUDA_HOST_PORTABLE", "CU_MEMHOSTREGISTER_PORTABLE"),
    ("NCCL_OK", "ncclSuccess"), ("NCCL_IN_PROGRESS", "ncclInProgress"),
    ("NCCL_INT8", "ncclInt8"), ("NCCL_UINT8", "ncclUint8"), ("NCCL_INT32", "ncclInt32"),
    ("NCCL_INT64", "ncclInt64"), ("NCCL_FLOAT16", "ncclFloat16"), ("NCCL_FLOAT32", "ncclFloat32"),
    ("NCCL_FLOAT64", "ncclFloat64"), ("NCCL_BFLOAT16", "ncclBfloat16"),
    ("NCCL_SUM", "ncclSum"), ("NCCL_PROD", "ncclProd"), ("NCCL_MAX", "ncclMax"),
    ("NCCL_MIN", "ncclMin"), ("NCCL_AVG", "ncclAvg"),
    ("NCCL_SCALAR_ON_HOST", "ncclScalarHostImmediate"),
    ("sizeof(struct nccl_id)", "sizeof(ncclUniqueId)"),
    ("offsetof(struct nccl_config, blocking)", "offsetof(ncclConfig_t, blocking)"),
]


def symbols(library):
    """The names of CUDA_MAP or NCCL_MAP."""
    text = NAMES.read_text()
    table = text[text.index(f"#define {library}_MAP(X)"):].split("\n\n")[0]
    return re.findall(r'X\(\w+,\s*"(\w+)"', table)


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvidia")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
                    str(folder), *PACKAGES], check=True)
    yield folder
    shutil.rmtree(folder)


def test_the_list_is_read():
    assert "cuStreamWaitEvent" in symbols("CUDA") and len(symbols("CUDA")) > 20
    assert "ncclAllReduce" in symbols("NCCL") and len(symbols("NCCL")) > 15


def test_nccl_has_every_symbol(packages):
    library = ctypes.CDLL(str(packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"))
    assert [name for name in symbols("NCCL") if not hasattr(library, name)] == []
    version, identity = ctypes.c_int(), ctypes.create_string_buffer(128)
    assert library.ncclGetVersion(ctypes.byref(version)) == 0 and version.value >= 21400
    assert library.ncclGetUniqueId(identity) == 0 and any(identity.raw)


def test_cuda_declares_every_symbol(packages):
    """The driver itself comes with a GPU only; its header is in the package of the runtime."""
    header = (packages / "nvidia" / "cuda_runtime" / "include" / "cuda.h").read_text()
    assert [name for name in symbols("CUDA") if not re.search(rf"\b{name}\b", header)] == []


def test_values_and_forms(packages, tmp_path):
    # nccl.h wants two types of the runtime's headers, and those want what comes with nvcc.
    (tmp_path / "cuda_fp16.h").touch()
    (tmp_path / "cuda_runtime.h").write_text(
        "#include <cuda.h>\ntypedef CUstream cudaStream_t;\ntypedef CUevent cudaEvent_t;\n")
    source = tmp_path / "values.c"
    source.write_text("#include <stddef.h>\n#include <cuda.h>\n#include <nccl.h>\n"
                      "#include \"gpu/names.h\"\n" +
                      "".join(f"_Static_assert((long)({ours}) == (long)({theirs}), \"{ours}\");\n"
                              for ours, theirs in VALUES))
    include = [f"-I{tmp_path}", *(f"-I{packages / 'nvidia' / part / 'include'}"
                                  for part in ("nccl", "cuda_runtime"))]
    done = subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-fsyntax-only",
                           f"-I{ROOT / 'src'}", *include, str(source)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_core_finds_the_package(packages):
    """nccl_built() before init, without torch: the version of the package."""
    library = ctypes.CDLL(str(packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"))
    version = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(version))
    script = ("import sys, horovod.common.delegates as hvd\n"
              "print(hvd.nccl_built(), hvd.rocm_built(), 'torch' in sys.modules)\n")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env=dict(os.environ, PYTHONPATH=str(packages)), check=True)
    assert done.stdout.split() == [str(version.value), "False", "False"]
