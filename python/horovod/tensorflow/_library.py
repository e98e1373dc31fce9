"""Loads the op library and gives it the functions of the core, so that both use one job."""
import ctypes
import os
from typing import Any

from horovod import _core
from horovod.common.advice import advised
from horovod.common.needs import need

need("tensorflow", "tensorflow", "TensorFlow", "tensorflow")

import tensorflow as tf

PATH = os.path.join(os.path.dirname(__file__), "_ops.so")


def _load() -> Any:
    core = ctypes.CDLL(_core.__file__)
    module = tf.load_op_library(PATH)
    use = ctypes.CDLL(PATH).horovod_tensorflow_use
    use.restype = ctypes.c_char_p
    problem = use(ctypes.byref(ctypes.c_char.in_dll(core, "horovod_calls")))
    if problem is not None:
        raise ImportError(advised(
            f"horovod.tensorflow cannot be used with TensorFlow {tf.__version__}: "
            f"{problem.decode()}"))
    return module


ops = _load()
