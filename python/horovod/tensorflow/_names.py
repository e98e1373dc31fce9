"""Names of operations, and what keeps them in a graph.

Ranks find each other's operations by name, so a name must follow from the program and not
from what a process happens to have traced before:

* eager, without a name: the engine counts, per process set and kind;
* in a function: the name of the node, made unique in its graph;
* of variables and their gradients: their place in the list and their path without the numbers
  that Keras counts, below a scope that is unique in its graph.

If the function is built into another one, the kernel puts what the node's name has gained there
before its wire names: it is told both, as lines of one text (src/tensorflow/tf_kernel.c).
"""
import collections
import re
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow as tf

from horovod.tensorflow._library import ops

RANK, SIZE, LOCAL_RANK, LOCAL_SIZE, INCLUDED, SET_RANK = range(6)

_executing_eagerly = tf.executing_eagerly


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


def normalize(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def name_of(tensor: Any) -> Optional[str]:
    """The name of a tensor in a graph; eager tensors have none."""
    try:
        return tensor.name
    except (AttributeError, ValueError):
        return None


def place(kind: str, tensors: Sequence[Any], name: Optional[str], ignore_name_scope: bool,
          grouped: bool, wire: Optional[Sequence[str]]) -> Tuple[Optional[str], str]:
    """(name of the node, text for the kernel) of an operation; ``wire``: names as they are."""
    if tf.executing_eagerly():
        wire = wire if wire is not None or not name else [name]
        return None, "\n".join(["", *wire]) if wire else ""
    if name is None:
        ends = [tensors[0], tensors[-1]] if grouped else [tensors[0]]
        words = [name_of(t) for t in ends]
        kind = f"HorovodGrouped{kind}" if grouped else f"Horovod{kind}"
        name = "_".join([kind] + [normalize(w) for w in words if w])
    unique = _graph().unique_name(re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name).lstrip("_/\\>-"))
    if wire is None:
        wire = [unique.rsplit("/", 1)[-1] if ignore_name_scope else unique]
    return unique + "/", "\n".join([unique, *wire])


def scope(name: str) -> str:
    """A name for a list of operations, unique in its graph.  Scopes of TensorFlow are left
    out: Keras puts its counters there."""
    name = normalize(name)
    if tf.executing_eagerly():
        return name
    graph = _graph()
    counts = getattr(graph, "_horovod_scopes", None)
    if counts is None:
        counts = graph._horovod_scopes = collections.Counter()
    counts[name] += 1
    return name if counts[name] == 1 else f"{name}_{counts[name] - 1}"


def paths(variables: Sequence[Any]) -> List[str]:
    """Of each variable its place and path."""
    return [f"{i}.{_path(v)}" for i, v in enumerate(variables)]


def _path(variable: Any) -> str:
    text = getattr(variable, "path", None) or name_of(variable) or "tensor"
    return re.sub(r"_\d+(?=/|$)", "", re.sub(r":\d+$", "", text)).replace("\n", "_")


def query(what: int, process_set_id: int = 0, name: Optional[str] = None) -> Any:
    return ops.horovod_query(what=what, process_set=process_set_id, name=name)


def guard() -> List[Any]:
    """An input that is known at run time only, so that an operation on constants is not
    executed while the graph is optimised."""
    if tf.executing_eagerly():
        return []
    graph = _graph()
    found = getattr(graph, "_horovod_guard", None)
    if found is None:
        with tf.control_dependencies(None):
            found = query(RANK, name="HorovodGuard")
        graph._horovod_guard = found
    return [found]


def keep(results: Sequence[Any]) -> None:
    """Operations of a function are executed although nobody uses their results: another rank
    may use its own."""
    if not tf.executing_eagerly() and _graph().building_function:
        ops.horovod_keep(tensors=results, name="HorovodKeep")
