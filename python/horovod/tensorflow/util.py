"""Small helpers that third-party code imports from here."""
from typing import Any, Tuple

import tensorflow as tf

from horovod.common.util import _cache

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "vars_to_refs", "refs_to_vars"]

_executing_eagerly = tf.executing_eagerly


def _make_subgraph(function: Any) -> Any:
    return tf.function(function)


def resource(variable: Any) -> Any:
    """The TensorFlow variable of a Keras variable; others as they are."""
    if not isinstance(variable, tf.Variable) and hasattr(variable, "path"):
        return variable.value
    return variable


def vars_to_refs(variables: Any) -> Tuple[Any, ...]:
    """Hashable references of variables, in nested tuples."""
    if isinstance(variables, (list, tuple)):
        return tuple(vars_to_refs(v) for v in variables)
    return resource(variables).ref()


def refs_to_vars(refs: Any) -> Any:
    """The variables of ``vars_to_refs``."""
    if isinstance(refs, (list, tuple)):
        return [refs_to_vars(r) for r in refs]
    return refs.deref()
