"""Whether the ranks have the same state, by a number of each instead of the state itself."""
import hashlib
import io
import pickle
from typing import Any, Optional

import torch

from horovod import _core

_BITS = 60                              # both it and its negative fit into an int64


class _Skeleton(pickle.Pickler):
    """A structure without the bytes of its plain tensors, which go into ``digest``."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=4)
        self.fast = True                # equal values are equal bytes, whoever shares them
        self.digest = 0

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or \
                value.device.type != "cpu" or value.layout is not torch.strided or \
                value.is_quantized or value.is_conj() or value.is_neg() or \
                not value.is_contiguous():
            raise pickle.PicklingError("the bytes of this tensor are not its value")
        self.digest = _core.digest(value.data_ptr(), value.numel() * value.element_size(),
                                   self.digest)
        return str(value.dtype), tuple(value.shape)


def fingerprint(structure: Any) -> Optional[int]:
    """The same number for the same state, another one for another state; None: it is not
    known, because a tensor is not plain memory here, or something cannot be pickled."""
    file = io.BytesIO()
    skeleton = _Skeleton(file)
    try:
        skeleton.dump(structure)
    except Exception:                   # whatever the objects of a script raise
        return None
    text = hashlib.sha256(file.getvalue() + skeleton.digest.to_bytes(8, "little")).digest()
    return int.from_bytes(text[:8], "little") >> (64 - _BITS)
