"""Elastic training with TensorFlow.

    state = hvd.elastic.TensorFlowKerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    train(state)
"""
import contextlib
import functools
import re
from typing import Any, Callable, Iterator, List, Optional, Tuple

import numpy as np
import tensorflow as tf

import horovod.numpy as _numpy
from horovod.common.advice import advised
from horovod.common.elastic import ObjectState, State, run_fn
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import functions, mpi_ops
from horovod.tensorflow.util import resource

__all__ = ["run", "init", "TensorFlowKerasState", "TensorFlowState", "State", "ObjectState"]

init = mpi_ops.init

_MARK = re.compile(r"\[horovod ([A-Z_]+) (-?\d+)\] ([^\n]*)")


def internal_error(error: BaseException) -> Optional[HorovodInternalError]:
    """What an error of one of our ops says; None for every other error."""
    found = _MARK.search(str(error))
    if found is None:
        return None
    result = HorovodInternalError(found[3])
    result.status, result.rank = found[1], int(found[2])
    result.scope = "OP" if found[1] in ("INVALID", "MISMATCH", "UNSUPPORTED", "REMOTE") else "JOB"
    return result


@contextlib.contextmanager
def converted() -> Iterator[None]:
    """Errors of our ops come out as HorovodInternalError, which restores the last commit."""
    try:
        yield
    except tf.errors.OpError as e:
        internal = internal_error(e)
        if internal is None:
            raise
        raise internal from e


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a State.

    The function is called after the state was synced from rank 0; after a failure the last
    commit is restored, after a change of hosts nothing is lost; then the job is formed
    again and the function is called from its beginning.
    """
    @functools.wraps(func)
    def train(state: Any, *args: Any, **kwargs: Any) -> Any:
        with converted():
            return func(state, *args, **kwargs)
    return run_fn(train, mpi_ops._basics._reset)


class _VariablesState(ObjectState):
    """Variables and plain values; subclasses say which variables there are now."""

    def __init__(self, **kwargs: Any) -> None:
        self._saved: List[np.ndarray] = []
        self._saved_last: List[np.ndarray] = []
        super().__init__(bcast_object=functions.broadcast_object, get_rank=mpi_ops.rank,
                         **kwargs)
        self._save_variables()

    def _variables(self) -> List[Any]:
        raise NotImplementedError

    def _save_variables(self) -> None:
        self._saved_last = self._saved
        self._saved = [resource(v).numpy().copy() for v in self._variables()]

    def save(self) -> None:
        self._save_variables()
        super().save()

    def _unsave(self) -> None:
        """Takes back the last save, which not all ranks have made."""
        self._saved = self._saved_last
        super()._unsave()

    def restore(self) -> None:
        """Variables that came after the last save (slots of an optimizer) go back to zero."""
        for i, variable in enumerate(self._variables()):
            target = resource(variable)
            target.assign(self._saved[i] if i < len(self._saved) else tf.zeros_like(target))
        super().restore()

    def sync(self) -> None:
        with converted():
            self._sync_variables()
        self._save_variables()
        super().sync()

    def _sync_variables(self) -> None:
        functions.broadcast_variables(self._variables(), root_rank=0)

    def _agree_on_updates(self, due: bool, newest: int, result: int) -> Tuple[bool, int, int]:
        """Everybody's messages count: one small reduction."""
        mine = np.array([int(due), newest, result & 1, result >> 1 & 1], np.int64)
        agreed, newest, removed, added = _numpy.allreduce(
            mine, _numpy.Max, "elastic.host_updates").tolist()
        return bool(agreed), newest, removed | added << 1

    def _agree_to_skip_sync(self, skip_sync: bool) -> bool:
        """Skipped only if everybody wants to; a worker that has just come never does."""
        if not mpi_ops.is_initialized():
            return skip_sync
        mine = np.array([int(skip_sync)], np.int64)
        return bool(_numpy.allreduce(mine, _numpy.Min, "elastic.skip_sync")[0])


class TensorFlowState(_VariablesState):
    """A list of variables and plain values.

        state = TensorFlowState(model.variables + optimizer.variables, batch=0)
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any) -> None:
        if variables is None:
            raise ValueError("TensorFlowState needs the list of variables to keep")
        self.variables = list(variables)
        super().__init__(**kwargs)

    def _variables(self) -> List[Any]:
        return self.variables


class TensorFlowKerasState(_VariablesState):
    """A Keras model with its optimizer, and plain values.

        state = TensorFlowKerasState(model, optimizer, epoch=0, batch=0)
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None,
                 **kwargs: Any) -> None:
        if not model.built:
            raise ValueError(advised(
                "the model has not been built: call it once, or model.build(), "
                "before its state is made"))
        self.model = model
        self.optimizer = optimizer if optimizer is not None else \
            getattr(model, "optimizer", None)
        super().__init__(**kwargs)

    def _variables(self) -> List[Any]:
        if self.optimizer is None:
            return list(self.model.variables)
        return list(self.model.variables) + list(self.optimizer.variables)

    def _sync_variables(self) -> None:
        """The optimizer of a rank that has just come may have no slots yet."""
        if self.optimizer is not None:
            built = _numpy.allreduce(np.array([int(self.optimizer.built)]), _numpy.Max,
                                     "elastic.built")
            if built[0] and not self.optimizer.built:
                self.optimizer.build(self.model.trainable_variables)
        super()._sync_variables()
