"""The state of an elastic PyTorch training."""
import copy
from typing import Any, Dict, List, Tuple, Type

import torch

from horovod.common.elastic import ObjectState
from horovod.torch import functions, mpi_ops
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


class _StateDictHandler(StateHandler):
    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self._saved_state = copy.deepcopy(value.state_dict())

    def save(self) -> None:
        self._saved_state = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved_state))


class ModelStateHandler(_StateDictHandler):
    def sync(self) -> None:
        functions.broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    def sync(self) -> None:
        functions.broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(_StateDictHandler):
    def sync(self) -> None:
        state = functions.broadcast_object(self.value.state_dict(), name="sampler_state")
        self.value.load_state_dict(state)
        self.save()


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


def _handlers_of(values: Dict[str, Any]) -> Tuple[Dict[str, StateHandler], Dict[str, Any]]:
    handlers, rest = {}, {}
    for name, value in values.items():
        for kind, handler in _handler_registry:
            if isinstance(value, kind):
                handlers[name] = handler(value)
                break
        else:
            rest[name] = value
    return handlers, rest


class TorchState(ObjectState):
    """Models, optimizers, samplers and plain values that an elastic training keeps.

        state = TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0)
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        kwargs.update(dict(model=model, optimizer=optimizer))
        handlers, rest = _handlers_of(kwargs)
        self._handlers = handlers
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        super().__init__(bcast_object=functions.broadcast_object, get_rank=mpi_ops.rank,
                         **rest)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_handlers", ()):
            self._handlers[name].set_value(value)
        object.__setattr__(self, name, value)

    def _agree_on_updates(self, previous: int, newest: int, result: int) -> tuple:
        """Everybody's messages count: one small reduction."""
        flags = [result & 1, result >> 1 & 1]
        mine = torch.tensor([previous, newest, *flags], dtype=torch.int64)
        agreed = mpi_ops.allreduce(mine, name="elastic.host_updates", op=mpi_ops.Max)
        previous, newest, removed, added = agreed.tolist()
        return previous, newest, removed | added << 1

    def _agree_to_skip_sync(self, skip_sync: bool) -> bool:
        """Skipped only if everybody wants to; a worker that has just come never does."""
        if not mpi_ops.is_initialized():
            return skip_sync
        return bool(mpi_ops.allreduce(torch.tensor([int(skip_sync)]), name="elastic.skip_sync",
                                      op=mpi_ops.Min).item())
