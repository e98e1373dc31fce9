"""State of one rank for everybody: variables and Python objects."""
from typing import Any, Callable, List, Optional, Sequence

import cloudpickle
import numpy as np
import tensorflow as tf

import horovod.numpy as _numpy
from horovod.common.advice import advised
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow import _names, mpi_ops
from horovod.tensorflow.util import resource


def broadcast_variables(variables: Sequence[Any], root_rank: int,
                        process_set: ProcessSet = global_process_set,
                        inplace: bool = False) -> Any:
    """Makes the variables of ``root_rank`` those of all ranks, as one operation.

    TensorFlow's and Keras's variables, in the same order on all ranks.  ``inplace`` is
    accepted; there is one way.

        hvd.broadcast_variables(model.variables, root_rank=0)
    """
    variables = list(variables)
    if not variables:
        return None
    scope = _names.scope("broadcast_variables")
    wire = [f"{scope}/{p}" for p in _names.paths(variables)]
    targets = [resource(v) for v in variables]
    values = mpi_ops._broadcast([v.read_value() for v in targets], root_rank, scope, False,
                                process_set, True, wire)
    assigns = [v.assign(x) for v, x in zip(targets, values)]
    # In a function they are executed anyway; a graph of TensorFlow 1 needs an op to run.
    in_session = not tf.compat.v1.executing_eagerly_outside_functions()
    return tf.group(*assigns) if in_session else None


def broadcast_(variables: Sequence[Any], root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> List[Any]:
    """Broadcasts variables in place; their new values."""
    broadcast_variables(variables, root_rank, process_set)
    return [resource(v).read_value() for v in variables]


def _check_graph_mode(name: str) -> None:
    if tf.executing_eagerly():
        raise RuntimeError(advised(
            f"{name} is for graphs of TensorFlow 1; with eager execution use "
            f"hvd.broadcast_variables(model.variables, root_rank=0)"))


def broadcast_global_variables(root_rank: int) -> Any:
    """For graphs of TensorFlow 1: an op that broadcasts all global variables."""
    _check_graph_mode("broadcast_global_variables")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For sessions of TensorFlow 1: broadcasts all global variables when one begins."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        with tf.device(self.device or None):
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)


# -- objects ------------------------------------------------------------------------


def _pickled(obj: Any) -> np.ndarray:
    return np.frombuffer(bytearray(cloudpickle.dumps(obj)), np.uint8)


def broadcast_object(obj: Any, root_rank: int = 0, session: Any = None,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The object of ``root_rank``, pickled and sent to all ranks; the root gets its own back.

    The sender is a rank of this job, which has proved the job key.
    """
    name = name or "broadcast_object"
    mine = _pickled(obj) if mpi_ops.rank() == root_rank else np.empty(0, np.uint8)
    length = _numpy.broadcast(np.array([mine.size], np.int64), root_rank, f"{name}.sz",
                              process_set)
    if mpi_ops.rank() != root_rank:
        mine = np.empty(int(length[0]), np.uint8)
    data = _numpy.broadcast(mine, root_rank, f"{name}.t", process_set)
    return obj if mpi_ops.rank() == root_rank else cloudpickle.loads(data.tobytes())


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: Optional[str] = None,
                        process_set: ProcessSet = global_process_set) -> Callable:
    """A function that broadcasts its argument."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in the order of ranks."""
    name = name or "allgather_object"
    data = _pickled(obj)
    lengths = _numpy.allgather(np.array([data.size], np.int64), f"{name}.sz", process_set)
    every = _numpy.allgather(data, f"{name}.t", process_set)
    ends = np.cumsum(lengths)
    return [cloudpickle.loads(every[end - n:end].tobytes()) for end, n in zip(ends, lengths)]
