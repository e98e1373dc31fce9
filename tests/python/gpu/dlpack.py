"""Outputs that the core has allocated on a device, as tensors of the device that is installed."""
import ctypes

import torch

from gpu.device import DeviceTensor, Memory

CPU = 1
DTYPES = {(0, 8): torch.int8, (0, 16): torch.int16, (0, 32): torch.int32, (0, 64): torch.int64,
          (1, 8): torch.uint8, (2, 16): torch.float16, (2, 32): torch.float32,
          (2, 64): torch.float64, (4, 16): torch.bfloat16, (6, 8): torch.bool}


class Managed(ctypes.Structure):
    """DLManagedTensor"""


Managed._fields_ = [
    ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
    ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed)))]

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


def from_dlpack(capsule, on_cpu=torch._C._from_dlpack):
    tensor = ctypes.cast(_pointer(capsule, b"dltensor"), ctypes.POINTER(Managed))
    form = tensor.contents
    if form.device_type == CPU:
        return on_cpu(capsule)
    _rename(capsule, b"used_dltensor")
    inner = torch.empty(form.shape[:form.ndim], dtype=DTYPES[form.code, form.bits], device="cpu")
    memory = Memory(form.device_id, inner.nbytes, (form.data or 0) + form.byte_offset,
                    owner=lambda: form.deleter(tensor))
    return DeviceTensor(inner, memory)
