"""torchmetrics objects are reduced over the ranks.

They ask torch.distributed, which is not there.  Both questions (is there a job, what do the
others have) can be answered by others: by Horovod here, unless the user has set them.
"""
import sys
from typing import Any, List, Optional

import torch

import horovod.torch as hvd


def is_available() -> bool:
    return hvd.is_initialized() and hvd.size() > 1


def gather_all(tensor: torch.Tensor, group: Optional[Any] = None) -> List[torch.Tensor]:
    """The tensors of all ranks; their shapes may differ."""
    heads = hvd.allgather(torch.tensor([tensor.dim(), *tensor.shape], dtype=torch.int64),
                          name="torchmetrics.shapes").tolist()
    shapes: List[List[int]] = []
    while heads:
        dims = int(heads[0])
        shapes.append(heads[1:1 + dims])
        heads = heads[1 + dims:]
    as_bytes = tensor.dtype == torch.bool
    flat = tensor.detach().reshape(-1)
    flat = hvd.allgather(flat.to(torch.uint8) if as_bytes else flat, name="torchmetrics.state")
    parts = flat.split([_count(shape) for shape in shapes])
    return [part.reshape(shape).to(tensor.dtype) for part, shape in zip(parts, shapes)]


def _count(shape: List[int]) -> int:
    result = 1
    for n in shape:
        result *= n
    return result


def connect(module: torch.nn.Module) -> int:
    """Sets both functions where they are torchmetrics' own; how many were set."""
    torchmetrics = sys.modules.get("torchmetrics.metric")
    if torchmetrics is None:
        return 0
    default = getattr(torchmetrics, "jit_distributed_available", None)
    count = 0
    for metric in module.modules():
        if not isinstance(metric, torchmetrics.Metric) or \
                getattr(metric, "process_group", None) is not None or \
                getattr(metric, "dist_sync_fn", True) is not None or \
                getattr(metric, "distributed_available_fn", None) is not default:
            continue
        metric.dist_sync_fn = gather_all
        metric.distributed_available_fn = is_available
        count += 1
    return count
