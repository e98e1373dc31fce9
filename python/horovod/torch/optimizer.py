"""DistributedOptimizer: an optimizer that averages gradients over the ranks.

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

The reduction of a gradient begins as soon as backward has computed it, and is complete when
``step`` applies it.  When backward has computed all of them it is complete at the end of
``backward()`` already, so that the usual loops with clipping or a GradScaler work as they
are; ``synchronize`` makes sure of it in all cases (gradient accumulation, parameters that
only some ranks use):

    loss.backward()
    optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    with optimizer.skip_synchronize():
        optimizer.step()
"""
import contextlib
import os
import warnings
import weakref
from typing import (Any, Callable, Container, Dict, Iterable, Iterator, List, Optional, Tuple,
                    Union)

import torch

from horovod import _core
from horovod.common.advice import advised
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import mpi_ops
from horovod.torch._reducer import GradientReducer, When
from horovod.torch.compression import Compression
from horovod.torch.mpi_ops import Adasum, Average, allreduce, allreduce_async_, size, \
    synchronize


class _Wrapped:
    """What the wrapped optimizers have in common; mixed in before the user's class.

    All attributes belong to the object, none to the class: Lightning puts a class around
    the optimizer that inherits from ours and asks the optimizer for what it has not.
    """
    _reducer: Optional[GradientReducer]
    _parameter_names: Dict[torch.Tensor, str]
    _synchronized: bool
    _should_synchronize: bool
    _due_only: bool             # step reduces only what backward has left unreduced

    # -- construction -------------------------------------------------------------

    def _take_over(self, optimizer: torch.optim.Optimizer) -> None:
        """State, options and groups of the original; the groups are the same objects, so
        that a scheduler of the original goes on working."""
        self.__dict__.update({k: v for k, v in optimizer.__dict__.items() if k != "step"})
        if "step" in optimizer.__dict__:            # a scheduler counts steps of the original
            optimizer._opt_called = True            # type: ignore
        self._reducer = None
        self._parameter_names = {}
        self._synchronized = False
        self._should_synchronize = True
        self._due_only = False

    def _watch(self, group_index: int, params: Iterable[torch.Tensor],
               elsewhere: Container[torch.Tensor] = ()) -> None:
        assert self._reducer is not None
        for i, p in enumerate(params):
            if p in elsewhere:
                continue
            name = self._parameter_names.get(p)
            if name is None:
                name = self._parameter_names[p] = f"allreduce.noname.{group_index}.{i}"
            self._reducer.watch(name, p)

    def add_param_group(self, param_group: dict) -> None:
        """As in torch; the new parameters are reduced, too."""
        super().add_param_group(param_group)                        # type: ignore
        if self._reducer is not None:
            index = len(self.param_groups) - 1                      # type: ignore
            self._watch(index, self.param_groups[index]["params"])  # type: ignore
            self._reducer.adopt()

    # -- hooks --------------------------------------------------------------------

    def register_comm_hooks(self) -> None:
        """Puts the gradient hooks back after ``remove_comm_hooks``."""
        if self._reducer is not None:
            self._reducer.attach()

    def remove_comm_hooks(self) -> None:
        """Removes the gradient hooks and drops what is in flight.  The optimizer can still
        be used: ``synchronize`` and ``step`` then reduce all gradients at once."""
        if self._reducer is not None:
            self._reducer.detach()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within this context backward passes only accumulate, and are not counted."""
        if self._reducer is None:
            yield
            return
        self._reducer.native.silent += 1
        try:
            yield
        finally:
            self._reducer.native.silent -= 1

    # -- what torch's optimizers have ---------------------------------------------

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As in torch.  AssertionError between backward and step or synchronize: it would
        race with the reduction."""
        if self._reducer is not None:
            self._reducer.adopt()
            if not self._reducer.may_zero():
                raise AssertionError(advised(
                    "optimizer.zero_grad() was called after loss.backward() but before "
                    "optimizer.step() or optimizer.synchronize(). This is prohibited as it "
                    "can cause a race condition. For gradients that nobody wants (of a "
                    "discriminator, when the generator learns), set requires_grad_(False) "
                    "on the parameters during that backward pass, or call "
                    "optimizer.synchronize() first."))
        self._synchronized = False              # of gradients that are gone now
        super().zero_grad(*args, **kwargs)                          # type: ignore

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As in torch; what is in flight is forgotten."""
        if self._reducer is not None:
            self._reducer.reset()
        self._synchronized = False
        groups = self.param_groups                                  # type: ignore
        super().load_state_dict(*args, **kwargs)                    # type: ignore
        for old, new in zip(groups, self.param_groups):             # type: ignore
            if old is not new:
                old.clear()
                old.update(new)
        self.param_groups = groups

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes after how many backward passes gradients are reduced."""
        self.backward_passes_per_step = passes
        if self._reducer is not None:
            self._reducer.native.passes = passes
            self._reducer.reset()


class _DistributedOptimizer(_Wrapped):
    """Reduces gradients before the user's optimizer applies them."""

    def synchronize(self) -> None:
        """Completes the reduction of all gradients; those that are missing on this rank
        count as zeros."""
        if self._reducer is not None:
            self._reducer.synchronize()
        self._synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """``step`` within this context does not reduce: ``synchronize`` was called before."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Optional[Callable] = None, *args: Any, **kwargs: Any) -> Any:
        """Reduces the gradients, then steps.  A closure's gradients are reduced each time
        it was evaluated."""
        if closure is not None:
            closure = self._with_reduction(closure)
            self._synchronized = False
            return super().step(closure, *args, **kwargs)           # type: ignore
        if self._is_due():
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context "
                    "after optimizer.synchronize(). This can cause training slowdown. You "
                    "may want to consider using optimizer.skip_synchronize() context if "
                    "you use optimizer.synchronize() in your code.")
            self.synchronize()
        self._synchronized = False
        return super().step(*args, **kwargs)                        # type: ignore

    step.hooked = True          # type: ignore  # torch: hooks belong to the inner step

    def _is_due(self) -> bool:
        if self._due_only and self._reducer is not None:
            return self._reducer.is_touched()
        return self._should_synchronize

    def _with_reduction(self, closure: Callable) -> Callable:
        searches = isinstance(self, torch.optim.LBFGS)

        def reduced() -> Any:
            loss = closure()
            if self._reducer is None:
                return loss
            if self._is_due():
                self._reducer.synchronize()
            if searches and isinstance(loss, torch.Tensor):
                # All ranks must take the same decisions in the line search.
                loss = allreduce(loss.detach(), op=Average,
                                 process_set=self._reducer.process_set)
            return loss
        return reduced


class _DistributedAdasumOptimizer(_Wrapped):
    """Steps locally and combines the updates ("deltas") of the ranks with Adasum."""

    def synchronize(self) -> None:
        """Nothing to do: updates are combined in ``step``."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        raise AssertionError("Skipping synchronization is not supported when using Adasum "
                             "optimizer.")
        yield

    def step(self, closure: Optional[Callable] = None, *args: Any, **kwargs: Any) -> Any:
        reducer = self._reducer
        if reducer is None:
            return super().step(closure, *args, **kwargs)           # type: ignore
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        reducer.adopt()
        with torch.no_grad():
            for p in reducer.params:
                if p.grad is None:
                    p.grad = torch.zeros_like(p)
            starts = [p.detach().clone() for p in reducer.params]
        result = super().step(*args, **kwargs)                      # type: ignore
        with torch.no_grad():
            self._combine(reducer, starts)
        reducer.reset()
        return result if closure is None else loss

    step.hooked = True          # type: ignore

    @staticmethod
    def _combine(reducer: GradientReducer, starts: List[torch.Tensor]) -> None:
        pending = []
        for name, p, start in zip(reducer.names, reducer.params, starts):
            delta, ctx = reducer.compression.compress(p.detach() - start)
            pending.append((allreduce_async_(delta, name=name, op=Adasum,
                                             process_set=reducer.process_set), ctx))
        for p, start, (handle, ctx) in zip(reducer.params, starts, pending):
            delta = reducer.compression.decompress(synchronize(handle), ctx)
            p.copy_(start + delta)


# -- construction -------------------------------------------------------------------


def _names_of(optimizer: torch.optim.Optimizer,
              named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]]
              ) -> Dict[torch.Tensor, str]:
    """The name of each parameter of the optimizer."""
    every = [(g, i, p) for g, group in enumerate(optimizer.param_groups)
             for i, p in enumerate(group["params"])]
    if named_parameters is None:
        return {p: f"allreduce.noname.{g}.{i}" for g, i, p in every}
    named = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in named):
        raise ValueError("named_parameters should be a sequence of tuples (name, parameter), "
                         "usually produced by model.named_parameters().")
    names = [name for name, _ in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(advised(
            f"Parameter names in named_parameters must be unique. Found "
            f"duplicates: {', '.join(twice)}"))
    result = {p: name for name, p in named}
    unnamed = [id(p) for _, _, p in every if p not in result]
    if unnamed:
        raise ValueError(advised(
            f"named_parameters was specified, but one or more model parameters "
            f"were not named. Python object ids: {', '.join(map(str, unnamed))}"))
    return result


def _checked_groups(groups: Any) -> None:
    if groups is None:
        return
    if isinstance(groups, int):
        if groups <= 0:
            raise ValueError("groups should be a positive integer or a list of list of "
                             "torch.Tensor.")
        return
    if not isinstance(groups, (list, tuple)):
        raise ValueError("groups should be a positive integer or a list of list of "
                         "torch.Tensor.")
    seen = set()
    for group in groups:
        for p in group:
            if not isinstance(p, torch.Tensor):
                raise ValueError("groups must consist of torch.Tensor.")
            if id(p) in seen:
                raise ValueError("A parameter can only appear once in groups.")
            seen.add(id(p))


def _takes_part(process_set: ProcessSet) -> bool:
    alone = size() == 1 and os.environ.get("HOROVOD_ELASTIC") != "1"
    return not alone and bool(process_set.included())


def DistributedOptimizer(optimizer: torch.optim.Optimizer,
                         named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
                         compression: Any = Compression.none,
                         backward_passes_per_step: int = 1, op: int = Average,
                         gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                         groups: Union[None, int, List[List[torch.Tensor]]] = None,
                         sparse_as_dense: bool = False,
                         process_set: ProcessSet = global_process_set) -> Any:
    """An optimizer of the same class that reduces gradients over the ranks.

    named_parameters
        usually ``model.named_parameters()``: names for errors and reports.
    compression
        ``hvd.Compression.fp16`` or ``bf16`` send gradients in 16 bits.
    backward_passes_per_step
        gradients of so many backward passes are summed before they are reduced.
    op
        ``hvd.Average``, ``hvd.Sum``, or ``hvd.Adasum``, which combines the ranks' updates.
    gradient_predivide_factor
        f: gradients are divided by f before and multiplied by f / size after the sum.
    groups
        a number, or lists of parameters that are reduced together (``num_groups`` is the
        old spelling).
    sparse_as_dense
        sparse gradients are reduced as dense ones; they stay sparse for the optimizer.
    process_set
        the ranks to reduce over; other ranks train on their own.

    State, options and parameter groups of the given optimizer are carried over; it must
    not be stepped any more.  Gradients live in memory that the ranks share: a ``p.grad``
    that must survive the next step has to be cloned, as with DistributedDataParallel.
    """
    return _wrap(optimizer, named_parameters, compression, backward_passes_per_step, op,
                 gradient_predivide_factor, num_groups, groups, sparse_as_dense, process_set)


def _wrap(optimizer: torch.optim.Optimizer,
          named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]], compression: Any,
          backward_passes_per_step: int = 1, op: int = Average,
          gradient_predivide_factor: float = 1.0, num_groups: int = 0,
          groups: Union[None, int, List[List[torch.Tensor]]] = None,
          sparse_as_dense: bool = False, process_set: ProcessSet = global_process_set,
          elsewhere: Container[torch.Tensor] = ()) -> Any:
    """As DistributedOptimizer; parameters that are ``elsewhere`` another optimizer reduces."""
    names = _names_of(optimizer, named_parameters)
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be "
                      "removed", DeprecationWarning, stacklevel=3)
        groups = num_groups if groups is None else groups
    _checked_groups(groups)
    adasum = op == Adasum and size() > 1
    mixin = _DistributedAdasumOptimizer if adasum else _DistributedOptimizer
    kind = type(optimizer.__class__.__name__, (mixin, optimizer.__class__),
                {"__module__": __name__})
    wrapped: Any = object.__new__(kind)
    wrapped._take_over(optimizer)
    wrapped._parameter_names = names
    wrapped.backward_passes_per_step = backward_passes_per_step
    if _takes_part(process_set):
        reducer = GradientReducer(op, compression, backward_passes_per_step,
                                  gradient_predivide_factor, sparse_as_dense, process_set)
        if isinstance(groups, int):
            reducer.split = groups
        elif groups is not None:
            reducer.groups = [list(g) for g in groups]
        if adasum:
            reducer.when = When.NEVER
        wrapped._reducer = reducer
        for index, group in enumerate(optimizer.param_groups):
            wrapped._watch(index, group["params"], elsewhere)
        reducer.attach()
        _core.warm_process_set(process_set.process_set_id)
        if adasum:
            for p in reducer.params:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        weakref.finalize(wrapped, GradientReducer.detach, reducer).atexit = False
    return wrapped
