"""The learning rate grows with the number of ranks, as in Lightning 1.x.

Everything that is a learning rate is multiplied, in the optimizer's groups and in its
schedulers; floors (``eta_min``, ``min_lrs`` of ReduceLROnPlateau) stay.  It happens once for an
optimizer, before a checkpoint is restored: that holds values which are scaled already.
"""
import weakref
from typing import Any, List, Sequence

import horovod.torch as hvd
from horovod.lightning._gradients import flattened

IN_GROUPS = ("lr", "initial_lr", "max_lr", "min_lr")    # the last two: OneCycleLR
IN_SCHEDULERS = ("base_lrs", "max_lrs", "_last_lr")     # max_lrs: CyclicLR

_scaled: "weakref.WeakSet[Any]" = weakref.WeakSet()


def scale(optimizer: Any, schedulers: Sequence[Any], factor: int) -> List[float]:
    """Multiplies once; the learning rates of the groups before, empty if nothing was done."""
    if factor == 1 or optimizer in _scaled:
        return []
    _scaled.add(optimizer)
    before = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
    for group in optimizer.param_groups:
        for key in IN_GROUPS:
            if group.get(key) is not None:
                group[key] = group[key] * factor
    for scheduler in flattened(schedulers):
        for key in IN_SCHEDULERS:
            values = getattr(scheduler, key, None)
            if isinstance(values, (list, tuple)):
                setattr(scheduler, key, [value * factor for value in values])
    return before


def told(before: List[float]) -> str:
    """The line for the log."""
    size = hvd.size()
    rates = ", ".join(f"{lr:g} -> {lr * size:g}" for lr in dict.fromkeys(before))
    return (f"Horovod: learning rate scaled by the number of ranks ({size}): {rates}; "
            "HorovodStrategy(scale_lr=False) leaves it as it is")
