"""The state of an elastic PyTorch training.

A save makes copies in C, beside the training: of parameters and optimizer state, which only
the next step of the optimizer changes, until that step; of everything else at once.
"""
import copy
import sys
import weakref
from typing import Any, Callable, Dict, List, Set, Tuple, Type

import torch

from horovod.common.elastic import ObjectState
from horovod.torch import _copies, functions, mpi_ops
from horovod.torch.elastic._fingerprint import fingerprint
from horovod.torch.elastic._snapshot import Snapshot
from horovod.torch.elastic.sampler import ElasticSampler


class StateHandler:
    """How one kind of object is saved, restored and synced."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        raise NotImplementedError()

    def restore(self) -> None:
        raise NotImplementedError()

    def sync(self) -> None:
        raise NotImplementedError()

    def set_value(self, value: Any) -> None:
        self.value = value
        self.save()


class StateDictHandler(StateHandler):
    """Objects with ``state_dict`` and ``load_state_dict``: schedulers, scalers, loaders."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._snapshot = Snapshot()
        self.save()

    def save(self) -> None:
        _copies.now(self._begin(lambda tensor: False))

    def _begin(self, waits: Callable[[torch.Tensor], bool]) -> List[_copies.Pair]:
        """Saves, up to copies that may be made until the optimizer steps."""
        at_once, later = self._snapshot.take(self.value.state_dict(), waits)
        _copies.now(at_once)
        return later

    def _unsave(self) -> None:
        self._snapshot.undo()

    def restore(self) -> None:
        _copies.settle()
        self.value.load_state_dict(copy.deepcopy(self._snapshot.structure))

    def sync(self) -> None:
        state = functions.broadcast_object(self.value.state_dict(), name="handler_state")
        self.value.load_state_dict(state)
        self.save()

    def _sync_same(self) -> None:
        """``sync`` when all ranks have the same state, up to the save."""
        self.value.load_state_dict(self.value.state_dict())


class ModelStateHandler(StateDictHandler):
    def restore(self) -> None:
        _copies.settle()
        self.value.load_state_dict(self._snapshot.structure)

    def sync(self) -> None:
        functions.broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()

    def _sync_same(self) -> None:
        pass


class OptimizerStateHandler(StateDictHandler):
    def restore(self) -> None:
        _copies.settle()
        structure, pairs = self._snapshot.brought_into(self.value.state_dict())
        _copies.now(pairs)
        self.value.load_state_dict(structure)

    def sync(self) -> None:
        functions.broadcast_optimizer_state(self.value, root_rank=0)
        self.save()

    def _sync_same(self) -> None:
        if not self.value.state:
            functions.zero_missing_gradients(self.value)


class SamplerStateHandler(StateDictHandler):
    def _learn(self, counts: List[int]) -> None:
        """Completes the save that was made at this place of the epoch, if there is one."""
        saved, place = self._snapshot.structure, self.value.state_dict()
        self.value._learn(counts)
        if saved == place:
            saved.update(self.value.state_dict())


# What they sync is their state_dict.
_OWN_HANDLERS = (StateDictHandler, ModelStateHandler, OptimizerStateHandler,
                 SamplerStateHandler)

_handler_registry: List[Tuple[Type, Type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> List[Tuple[Type, Type[StateHandler]]]:
    """(kind of object, its handler), the first match counts."""
    return _handler_registry


def set_handler_registry(registry: List[Tuple[Type, Type[StateHandler]]]) -> None:
    global _handler_registry
    _handler_registry = registry


def _has_state_dict(value: Any) -> bool:
    return not isinstance(value, type) and callable(getattr(value, "state_dict", None)) and \
        callable(getattr(value, "load_state_dict", None))


def _handlers_of(values: Dict[str, Any]) -> Tuple[Dict[str, StateHandler], Dict[str, Any]]:
    handlers: Dict[str, StateHandler] = {}
    rest = {}
    for name, value in values.items():
        for kind, handler in _handler_registry:
            if isinstance(value, kind):
                handlers[name] = handler(value)
                break
        else:
            if _has_state_dict(value):
                handlers[name] = StateDictHandler(value)
            else:
                rest[name] = value
    return handlers, rest


class TorchState(ObjectState):
    """Models, optimizers, samplers and plain values that an elastic training keeps.

        state = TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)

    Also what else has ``state_dict`` and ``load_state_dict``: schedulers, a GradScaler.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs.update(dict(model=model, optimizer=optimizer))
        self._hasty = True              # parameters are copied until the optimizer steps
        handlers, rest = _handlers_of(kwargs)
        self._handlers = handlers
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(bcast_object=functions.broadcast_object, get_rank=mpi_ops.rank,
                         **rest)

    # -- save and restore ---------------------------------------------------------

    def save(self) -> None:
        _copies.settle()
        stepped = self._stepped() if self._hasty else set()
        later: List[_copies.Pair] = []
        for handler in self._handlers.values():
            if type(handler).save is not StateDictHandler.save:
                handler.save()
                continue
            assert isinstance(handler, StateDictHandler)
            if isinstance(handler.value, torch.optim.Optimizer):
                later += handler._begin(lambda tensor: self._hasty)
            else:
                later += handler._begin(lambda tensor: tensor.data_ptr() in stepped)
        super().save()
        me = weakref.ref(self)
        _copies.later(later, lambda: me() and me()._spoil(),        # type: ignore
                      [h.value for h in self._handlers.values()
                       if isinstance(h.value, torch.nn.Module)])

    def _stepped(self) -> Set[int]:
        """Where the parameters lie that the optimizers of this state step."""
        return {p.data_ptr() for handler in self._handlers.values()
                if isinstance(handler.value, torch.optim.Optimizer)
                for group in handler.value.param_groups for p in group["params"]}

    def _spoil(self) -> None:
        """Somebody changed parameters between a commit and the next step."""
        sys.stderr.write("horovod: parameters were changed in place after a commit and before "
                         "optimizer.step(); that commit is dropped, and commits wait for "
                         "their copies from now on\n")
        self._hasty = False
        self._unsave()
        self._commits = max(0, self._commits - 1)

    def _unsave(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, StateDictHandler):
                handler._unsave()
        super()._unsave()

    def restore(self) -> None:
        _copies.settle()
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    # -- with the other ranks -----------------------------------------------------

    def sync(self) -> None:
        """Only what is not the same everywhere travels: survivors that have gone back to one
        commit compare a number each."""
        _copies.settle()
        *same, is_same = self._compare()
        for handler, is_kept in zip(self._handlers.values(), same):
            if is_kept:
                assert isinstance(handler, StateDictHandler)
                handler._sync_same()
                handler.save()
            else:
                handler.sync()
        commits = self._commits
        if not is_same:
            commits, self._saved_state = self._bcast_object((commits, self._saved_state))
        self._set_attrs()
        self._count_commit(commits)

    def _compare(self) -> List[bool]:
        """Of each handler, and of the plain values, whether all ranks have the same; one small
        reduction.  Handlers that sync in their own way are always asked to."""
        prints = [fingerprint(h.value.state_dict()) if type(h) in _OWN_HANDLERS else None
                  for h in self._handlers.values()]
        prints.append(fingerprint((self._commits, self._saved_state)))
        mine = torch.tensor([[1, 1] if p is None else [p, -p] for p in prints],
                            dtype=torch.int64, device="cpu")
        agreed = mpi_ops.allreduce(mine, name="elastic.fingerprints", op=mpi_ops.Max).tolist()
        return [most == -least for most, least in agreed]

    def reset(self) -> None:
        for handler in self._samplers():
            handler.value.reset()

    def _samplers(self) -> List[SamplerStateHandler]:
        return [handler for handler in self._handlers.values()
                if isinstance(handler, SamplerStateHandler)]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", ()):
            self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)

    def _agree_on_updates(self, due: bool, newest: int, result: int) -> Tuple[bool, int, int]:
        """Everybody's messages count, and everybody's progress: one small reduction."""
        samplers = self._samplers()
        done = [h.value._done for h in samplers]
        mine = torch.tensor([due, newest, result & 1, result >> 1 & 1, *done,
                             *(-n for n in done)], dtype=torch.int64, device="cpu")
        agreed = mpi_ops.allreduce(mine, name="elastic.host_updates", op=mpi_ops.Max).tolist()
        most, least = agreed[4:4 + len(done)], agreed[4 + len(done):]
        for i, handler in enumerate(samplers):
            if most[i] != -least[i]:    # batches of different sizes
                counts = mpi_ops.allgather(torch.tensor([done[i]], device="cpu"),
                                           name=f"elastic.progress.{i}")
                handler._learn(counts.tolist())
        return bool(agreed[0]), agreed[1], agreed[2] | agreed[3] << 1

    def _agree_to_skip_sync(self, skip_sync: bool) -> bool:
        """Skipped only if everybody wants to; a worker that has just come never does."""
        return bool(mpi_ops.allreduce(torch.tensor([int(skip_sync)], device="cpu"),
                                      name="elastic.skip_sync", op=mpi_ops.Min).item())
