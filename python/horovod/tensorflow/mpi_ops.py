"""The operations as TensorFlow ops, with their gradients.

Every rank of ``process_set`` runs the same operation; see ``_names`` for how they find each
other.  An operation is a TF op: its result is there when it is used.
"""
import struct
from typing import Any, List, Optional, Sequence

import tensorflow as tf

from horovod.common.delegates import *                          # noqa: F401,F403
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import num_rank_is_power_2
from horovod.tensorflow import _names
from horovod.tensorflow._library import ops


def check_num_rank_power_of_2(num_rank: int) -> bool:
    """Whether a number of ranks is a power of two."""
    return num_rank_is_power_2(num_rank)


def _bits(value: float) -> int:
    """A double as the integer that an attribute can hold."""
    return struct.unpack("<q", struct.pack("<d", value))[0]


def _id(process_set: Any) -> int:
    """Of a set, or of the number of one."""
    number = process_set if isinstance(process_set, int) else process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered; give it to hvd.init() or "
                         f"hvd.add_process_set()")
    return number


def _tensors(values: Sequence[Any]) -> List[Any]:
    return [tf.convert_to_tensor(v) for v in values]


class _Call:
    """The arguments that all operations share."""

    def __init__(self, kind: str, tensors: Sequence[Any], name: Optional[str],
                 ignore_name_scope: bool, process_set: Any, grouped: bool,
                 wire: Optional[Sequence[str]] = None, pass_by: bool = False) -> None:
        self.tensors = _tensors(tensors)
        node, text = _names.place(kind, list(tensors), name, ignore_name_scope, grouped, wire)
        self.keeps = wire is None
        self.options = dict(tensors=self.tensors, guard=_names.guard(), name=node,
                            tensor_name=text, pass_by=pass_by, process_set=_id(process_set))

    def run(self, op: Any, **options: Any) -> Any:
        results = op(**self.options, **options)
        if self.keeps:
            _names.keep(tf.nest.flatten(results))
        return results

    def open_rows(self, results: Sequence[Any]) -> List[Any]:
        """Says what is known of results whose first dimension depends on the others."""
        if not tf.executing_eagerly():
            for tensor, result in zip(self.tensors, results):
                if tensor.shape.rank:
                    result.set_shape([None] + tensor.shape.as_list()[1:])
        return list(results)


# -- allreduce ----------------------------------------------------------------------


def _allreduce(tensor: Any, name: Optional[str] = None, op: int = Sum,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               ignore_name_scope: bool = False,
               process_set: Any = global_process_set) -> Any:
    """One dense tensor, reduced over the ranks."""
    call = _Call("Allreduce", [tensor], name, ignore_name_scope, process_set, False)
    return call.run(ops.horovod_allreduce, reduce=op, prescale=_bits(prescale_factor),
                    postscale=_bits(postscale_factor))[0]


def _grouped_allreduce(tensors: Sequence[Any], name: Optional[str] = None, op: int = Sum,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       ignore_name_scope: bool = False,
                       process_set: Any = global_process_set, wire: Optional[Sequence[str]] = None,
                       pass_by: bool = False) -> List[Any]:
    """Several dense tensors of any types as one op.

    ``wire``: names to use as they are, and the results are used for sure.  ``pass_by``: on a
    rank that is not a member of the set the tensors are returned as they are.
    """
    call = _Call("Allreduce", tensors, name, ignore_name_scope, process_set, True, wire,
                 pass_by)
    return list(call.run(ops.horovod_allreduce, reduce=op, prescale=_bits(prescale_factor),
                         postscale=_bits(postscale_factor)))


def _ignores_scope(op: Any) -> bool:
    """Whether the name scope of an op was ignored: then it is in its gradient, too."""
    text = op.get_attr("tensor_name")
    lines = (text.decode() if isinstance(text, bytes) else text).split("\n")
    return len(lines) > 1 and lines[0] != lines[1]


def _like(gradients: Sequence[Any], inputs: Sequence[Any]) -> List[Any]:
    """TensorFlow has float32 zeros for outputs that were not used."""
    return [tf.cast(g, x.dtype) for g, x in zip(gradients, inputs)]


def _none(op: Any, used: int) -> List[None]:
    """No gradient for the inputs behind the tensors."""
    return [None] * (len(op.inputs) - used)


def _factor(op: Any, name: str) -> float:
    return struct.unpack("<d", struct.pack("<q", op.get_attr(name)))[0]


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_grad(op: Any, *gradients: Any) -> List[Any]:
    reduce = op.get_attr("reduce")
    if reduce in (Min, Max, Product):
        raise NotImplementedError("an allreduce with Min, Max or Product has no gradient")
    gradients = _like(gradients, op.inputs)
    options = dict(op=reduce, prescale_factor=_factor(op, "prescale"),
                   postscale_factor=_factor(op, "postscale"),
                   ignore_name_scope=_ignores_scope(op),
                   process_set=op.get_attr("process_set"))
    if len(gradients) == 1:
        results = [_allreduce(gradients[0], **options)]
    else:
        results = _grouped_allreduce(gradients, **options)
    return results + _none(op, len(results))


# -- allgather ----------------------------------------------------------------------


def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """The tensors of all ranks one after the other, along the first dimension, in which
    they may differ."""
    return _allgather([tensor], name, ignore_name_scope, process_set, False)[0]


def grouped_allgather(tensors: Sequence[Any], name: Optional[str] = None,
                      ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> List[Any]:
    """``allgather`` of several tensors as one operation."""
    if not tensors:
        return list(tensors)
    return _allgather(tensors, name, ignore_name_scope, process_set, True)


def _allgather(tensors: Sequence[Any], name: Optional[str], ignore_name_scope: bool,
               process_set: Any, grouped: bool, wire: Optional[Sequence[str]] = None,
               pass_by: bool = False) -> List[Any]:
    call = _Call("Allgather", tensors, name, ignore_name_scope, process_set, grouped, wire,
                 pass_by)
    return call.open_rows(call.run(ops.horovod_allgather))


@tf.RegisterGradient("HorovodAllgather")
def _allgather_grad(op: Any, *gradients: Any) -> List[Any]:
    process_set, ignore = op.get_attr("process_set"), _ignores_scope(op)
    results = []
    for gradient, tensor in zip(_like(gradients, op.inputs), op.inputs):
        mean = _allreduce(gradient, op=Average, ignore_name_scope=ignore,
                          process_set=process_set)
        rows = tf.shape(tensor)[:1]
        every = _allgather([rows], None, ignore, process_set, False)[0]
        before = tf.reduce_sum(every[:_names.query(_names.SET_RANK, process_set)])
        results.append(mean[before:before + rows[0]])
    return results + _none(op, len(results))


# -- broadcast ----------------------------------------------------------------------


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None,
              ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> Any:
    """The tensor of ``root_rank``, on every rank."""
    return _broadcast([tensor], root_rank, name, ignore_name_scope, process_set, False)[0]


def _broadcast(tensors: Sequence[Any], root_rank: int, name: Optional[str],
               ignore_name_scope: bool, process_set: Any, grouped: bool,
               wire: Optional[Sequence[str]] = None) -> List[Any]:
    call = _Call("Broadcast", tensors, name, ignore_name_scope, process_set, grouped, wire)
    return list(call.run(ops.horovod_broadcast, root=root_rank))


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_grad(op: Any, *gradients: Any) -> List[Any]:
    process_set, results = op.get_attr("process_set"), []
    is_root = tf.equal(_names.query(_names.RANK), op.get_attr("root"))
    for gradient in _like(gradients, op.inputs):
        mean = _allreduce(gradient, op=Average, ignore_name_scope=_ignores_scope(op),
                          process_set=process_set)
        results.append(mean * tf.cast(is_root, mean.dtype))
    return results + _none(op, len(results))


# -- alltoall -----------------------------------------------------------------------


def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None,
             ignore_name_scope: bool = False,
             process_set: ProcessSet = global_process_set) -> Any:
    """Rows to and from every rank: the first ``splits[0]`` rows go to rank 0, and so on;
    without ``splits`` all get equally many.

    Returns the rows received; with ``splits`` also how many came from each rank.
    """
    output, received = _alltoall(tensor, splits, name, ignore_name_scope, process_set)
    return output if splits is None else (output, received)


def _alltoall(tensor: Any, splits: Any, name: Optional[str], ignore_name_scope: bool,
              process_set: Any) -> tuple:
    given = [] if splits is None else [tf.convert_to_tensor(splits, tf.int32)]
    call = _Call("Alltoall", [tensor], name, ignore_name_scope, process_set, False)
    results, received = call.run(ops.horovod_alltoall, splits=given)
    call.open_rows(results)
    if not tf.executing_eagerly():
        received.set_shape([None])
    return results[0], received


@tf.RegisterGradient("HorovodAlltoall")
def _alltoall_grad(op: Any, *gradients: Any) -> List[Any]:
    result, _ = _alltoall(gradients[0], op.outputs[-1], None, _ignores_scope(op),
                          op.get_attr("process_set"))
    return [result] + _none(op, 1)


# -- reducescatter ------------------------------------------------------------------


def _reducescatter(tensor: Any, name: Optional[str] = None, op: int = Sum,
                   ignore_name_scope: bool = False,
                   process_set: Any = global_process_set, prescale_factor: float = 1.0,
                   postscale_factor: float = 1.0) -> Any:
    return _grouped_reducescatter([tensor], name, op, ignore_name_scope, process_set,
                                  prescale_factor, postscale_factor, False)[0]


def _grouped_reducescatter(tensors: Sequence[Any], name: Optional[str] = None, op: int = Sum,
                           ignore_name_scope: bool = False,
                           process_set: Any = global_process_set,
                           prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                           grouped: bool = True) -> List[Any]:
    call = _Call("Reducescatter", tensors, name, ignore_name_scope, process_set, grouped)
    return call.open_rows(call.run(
        ops.horovod_reducescatter, reduce=op, prescale=_bits(prescale_factor),
        postscale=_bits(postscale_factor)))


@tf.RegisterGradient("HorovodReducescatter")
def _reducescatter_grad(op: Any, *gradients: Any) -> List[Any]:
    process_set, results = op.get_attr("process_set"), []
    factor = _factor(op, "prescale") * _factor(op, "postscale")
    for gradient in _like(gradients, op.inputs):
        whole = _allgather([gradient], None, _ignores_scope(op), process_set, False)[0]
        scale = tf.cast(factor, whole.dtype)
        if op.get_attr("reduce") == Sum:
            scale *= tf.cast(_names.query(_names.SIZE, process_set), whole.dtype)
        results.append(whole * scale)
    return results + _none(op, len(results))


# -- join, queries ------------------------------------------------------------------


def join() -> Any:
    """This rank has no more data: it takes part in the others' allreduces with zeros until
    all have joined.  The rank that joined last."""
    return ops.horovod_join()


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """The number of ranks, asked when the graph runs."""
    return _names.query(_names.SIZE, process_set_id, name)


def local_size_op(name: Optional[str] = None) -> Any:
    """The number of ranks on this host, asked when the graph runs."""
    return _names.query(_names.LOCAL_SIZE, 0, name)


def rank_op(name: Optional[str] = None) -> Any:
    """The rank of this process, asked when the graph runs."""
    return _names.query(_names.RANK, 0, name)


def local_rank_op(name: Optional[str] = None) -> Any:
    """The rank among those of this host, asked when the graph runs."""
    return _names.query(_names.LOCAL_RANK, 0, name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> Any:
    """1 if this process is a member of the set, else 0."""
    return _names.query(_names.INCLUDED, process_set_id, name)


tf.no_gradient("HorovodQuery")
tf.no_gradient("HorovodJoin")
