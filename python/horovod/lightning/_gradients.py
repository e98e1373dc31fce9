"""When gradients are reduced: after each backward pass, before anybody looks at them.

The optimizers are wrapped by ``hvd.DistributedOptimizer``, whose hooks start the reduction
while backward runs.  Here it is completed:

1. ``synchronize`` follows every backward pass that is not blocked.  After it the gradients
   of all ranks are equal, so that clipping, unscaling and hooks see the same everywhere.
   Nothing is waited for before: a rank that has touched more optimizers than the others
   would wait for them while they wait for rule 3.
2. ``step`` finds nothing left to reduce.
3. With several optimizers, a backward pass may have touched some of them only.  The ranks
   agree on which, because each of them has to take part: one small allreduce.
4. A parameter of several optimizers is reduced by the first of them.
"""
import contextlib
import weakref
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

import torch

import horovod.torch as hvd
from horovod.common.advice import advised
from horovod.torch._reducer import When
from horovod.torch.functions import _broadcast_state
from horovod.torch.optimizer import _Wrapped, _wrap


class Gradients:
    """The wrapped optimizers of a strategy."""

    def __init__(self, compression: Any, op: int) -> None:
        self.compression = compression
        self.op = op
        self._optimizers: List[Any] = []        # weak references, in the order of wrapping
        self._blocks = 0                        # contexts of ``blocked`` around us
        self._reduced: Set[int] = set()         # parameters that have a reducer, by id

    def wrap(self, optimizer: Any, module_names: Dict[int, str]) -> Any:
        """A DistributedOptimizer in its place; one that the user made is kept."""
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(advised(
                f"strategy='horovod' needs optimizers of torch.optim, not "
                f"{type(optimizer).__name__}"))
        number = len(self._optimizers)
        if isinstance(optimizer, _Wrapped):
            wrapped: Any = optimizer
            wrapped.register_comm_hooks()
        else:
            names = _named(optimizer, number, module_names)
            shared = {p for _, p in names if id(p) in self._reduced}
            wrapped = _wrap(optimizer, names, self.compression, op=self.op, elsewhere=shared)
            _accept_schedulers(wrapped)
        self._take(wrapped, True)
        if wrapped._reducer is not None and wrapped._reducer.when is When.NEVER:
            wrapped.remove_comm_hooks()         # Adasum reduces updates, in step
        self._reduced.update(id(p) for group in wrapped.param_groups for p in group["params"])
        self._optimizers.append(weakref.ref(wrapped))
        _broadcast_state(wrapped, 0, hvd.global_process_set)
        return wrapped

    @staticmethod
    def _take(wrapped: Any, taken: bool) -> None:
        wrapped._due_only = taken
        if wrapped._reducer is not None and wrapped._reducer.when is not When.NEVER:
            wrapped._reducer.when = When.STEP if taken else When.BACKWARD

    def release(self) -> None:
        """Takes the hooks out of the model; in-flight reductions are dropped."""
        for reference in self._optimizers:
            wrapped = reference()
            if wrapped is not None:
                wrapped.remove_comm_hooks()
                self._take(wrapped, False)
        self._optimizers = []
        self._reduced = set()
        self._blocks = 0

    @contextlib.contextmanager
    def blocked(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for reference in self._optimizers:
                wrapped = reference()
                if wrapped is not None:
                    stack.enter_context(wrapped.no_sync())
            self._blocks += 1
            try:
                yield
            finally:
                self._blocks = max(0, self._blocks - 1)

    def synchronize(self) -> None:
        """Rule 1; every rank calls it after the same backward passes."""
        if self._blocks > 0 or hvd.size() == 1:
            return
        optimizers = [reference() for reference in self._optimizers]
        if len(optimizers) > 1:
            touched = torch.tensor([int(_is_touched(o)) for o in optimizers],
                                   dtype=torch.int32)
            hvd.allreduce_(touched, name="lightning.touched", op=hvd.Max)
            optimizers = [o for o, t in zip(optimizers, touched.tolist()) if t]
        for wrapped in optimizers:
            if wrapped is not None:
                wrapped.synchronize()


def _is_touched(wrapped: Any) -> bool:
    return wrapped is not None and wrapped._reducer is not None and \
        wrapped._reducer.is_touched()


def _named(optimizer: torch.optim.Optimizer, number: int,
           module_names: Dict[int, str]) -> List[Tuple[str, torch.Tensor]]:
    """Names for all parameters, also for those that are not the model's."""
    return [(module_names.get(id(p), f"optimizer{number}.group{g}.{i}"), p)
            for g, group in enumerate(optimizer.param_groups)
            for i, p in enumerate(group["params"])]


# -- schedulers ---------------------------------------------------------------------


def _accept_schedulers(wrapped: Any) -> None:
    """Lets schedulers of the original optimizer be handed over without their warning that
    its ``step`` is not the one they have seen."""
    kind = type(wrapped)

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return super(kind, self).step(*args, **kwargs)          # type: ignore[misc]

    step.hooked = step._wrapped_by_lr_sched = True              # type: ignore[attr-defined]
    kind.step = step
    wrapped._opt_called = True


def flattened(schedulers: Sequence[Any]) -> Iterator[Any]:
    """Schedulers and those they are made of."""
    for scheduler in schedulers:
        yield scheduler
        yield from flattened(getattr(scheduler, "_schedulers", None) or [])


def hand_over(schedulers: Sequence[Any], original: Any, wrapped: Any) -> None:
    """Schedulers of the original work on the wrapped one: callbacks compare the two."""
    for scheduler in flattened(schedulers):
        if getattr(scheduler, "optimizer", None) is original:
            scheduler.optimizer = wrapped
