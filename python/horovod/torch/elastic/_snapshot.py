"""The last two copies of a state_dict, in memory that is kept."""
import copy
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from horovod.torch._copies import Pair


def _tensors(structure: Any) -> Iterator[torch.Tensor]:
    """The plain dense tensors of nested dicts, lists and tuples; others are for deepcopy."""
    if isinstance(structure, torch.Tensor):
        if type(structure) in (torch.Tensor, torch.nn.Parameter) and \
                structure.layout is torch.strided and not structure.is_quantized and \
                not structure.is_inference():
            yield structure
    elif isinstance(structure, dict):
        for value in structure.values():
            yield from _tensors(value)
    elif isinstance(structure, (list, tuple)):
        for value in structure:
            yield from _tensors(value)


def _is_raw(tensor: torch.Tensor) -> bool:
    """Whether the bytes are the value."""
    return tensor.device.type == "cpu" and not tensor.is_conj() and not tensor.is_neg()


def _fits(buffer: torch.Tensor, tensor: torch.Tensor) -> bool:
    return buffer.shape == tensor.shape and buffer.dtype == tensor.dtype and \
        buffer.device == tensor.device and buffer.stride() == tensor.stride()


class _Copy:
    """A state_dict whose tensors are ours."""

    def __init__(self, structure: Any, buffers: List[torch.Tensor]) -> None:
        self.structure, self.buffers = structure, buffers


class Snapshot:
    """``take`` copies into the memory of the copy before the newest, so that the newest is
    whole at any time; ``undo`` makes it the newest again."""

    def __init__(self) -> None:
        self._newest: Optional[_Copy] = None
        self._before: Optional[_Copy] = None

    def take(self, structure: Any, waits: Callable[[torch.Tensor], bool]
             ) -> Tuple[List[Pair], List[Pair]]:
        """(pairs to copy now, pairs to copy until ``waits`` is over)."""
        old = self._before.buffers if self._before is not None else []
        at_once: List[Pair] = []
        later: List[Pair] = []
        memo: Dict[int, torch.Tensor] = {}
        buffers: List[torch.Tensor] = []
        for tensor in _tensors(structure):
            if id(tensor) in memo:
                continue
            index = len(buffers)
            buffer = old[index] if index < len(old) and _fits(old[index], tensor) else \
                torch.empty_like(tensor, requires_grad=False)
            memo[id(tensor)] = buffer
            buffers.append(buffer)
            if not _is_raw(tensor) or not _fits(buffer, tensor):
                buffer.copy_(tensor.detach(), non_blocking=True)
            elif tensor.numel() > 0:
                (later if waits(tensor) else at_once).append((buffer, tensor.detach()))
        copied = _Copy(copy.deepcopy(structure, dict(memo)), buffers)
        self._before, self._newest = self._newest, copied
        return at_once, later

    def undo(self) -> None:
        if self._before is not None:
            self._before, self._newest = self._newest, self._before

    @property
    def structure(self) -> Any:
        """The newest copy; not to be changed."""
        assert self._newest is not None
        return self._newest.structure

    def brought_into(self, live: Any) -> Tuple[Any, List[Pair]]:
        """The newest copy in the tensors of ``live``, where they fit, and what must be
        copied to make it true."""
        assert self._newest is not None
        memo: Dict[int, torch.Tensor] = {}
        pairs: List[Pair] = []
        targets = {id(t): t for t in _tensors(live)}
        for buffer, tensor in zip(self._newest.buffers, targets.values()):
            if _is_raw(tensor) and _fits(buffer, tensor):
                memo[id(buffer)] = tensor
                pairs.append((tensor.detach(), buffer))
        return copy.deepcopy(self._newest.structure, memo), pairs
