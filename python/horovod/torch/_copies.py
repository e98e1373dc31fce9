"""Copies of tensors that are made while the training goes on.

One batch at a time, by a thread of the core.  Whoever is about to change the tensors in place
calls ``settle`` first: every optimizer (torch calls a hook before each step), models whose
``load_state_dict`` is called, broadcasts.  A change nobody announced is seen by the tensor's
version, and the batch counts as spoiled.
"""
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from horovod import _core

Pair = Tuple[torch.Tensor, torch.Tensor]            # (to, from), of one form

class _Flight:
    """What is being copied, kept alive until it is."""

    def __init__(self, pairs: List[Pair], spoiled: Callable[[], None],
                 modules: List[torch.nn.Module]) -> None:
        self.pairs, self.spoiled = pairs, spoiled
        self.versions = [it._version for _, it in pairs]
        self.hooks = [m._register_load_state_dict_pre_hook(settle) for m in modules]

    def is_whole(self) -> bool:
        return all(it._version == version for (_, it), version in
                   zip(self.pairs, self.versions))


_flight: Optional[_Flight] = None
_hooked = False


def _pieces(pairs: List[Pair]) -> List[Tuple[int, int, int]]:
    return [(to.data_ptr(), it.data_ptr(), it.numel() * it.element_size())
            for to, it in pairs]


def now(pairs: List[Pair]) -> None:
    """Copies, and returns when that is done."""
    settle()
    if pairs:
        _core.copy_start(_pieces(pairs))
        _core.copy_wait()


def later(pairs: List[Pair], spoiled: Callable[[], None],
          modules: List[torch.nn.Module]) -> None:
    """Begins to copy.  ``spoiled`` is called by ``settle`` if a source was changed before;
    ``load_state_dict`` of the modules waits."""
    global _flight, _hooked
    settle()
    if not pairs:
        return
    if not _hooked:
        register_optimizer_step_pre_hook(settle)
        _hooked = True
    _flight = _Flight(pairs, spoiled, modules)
    _core.copy_start(_pieces(pairs))


def settle(*_: Any) -> None:
    """Waits until everything is copied; costs nothing when it is."""
    global _flight
    if _flight is None:
        return
    _core.copy_wait()
    flight, _flight = _flight, None
    for hook in flight.hooks:
        hook.remove()
    if not flight.is_whole():
        flight.spoiled()
