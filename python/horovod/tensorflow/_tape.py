"""Gradient tapes whose gradients are reduced over the ranks."""
import warnings
from typing import Any, List, Tuple

import tensorflow as tf

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.tensorflow._gradients import GradientReducer, check_groups
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average


class _DistributedGradientTape:
    """Comes before the class of a tape."""
    _reducer: GradientReducer

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None,
                 use_generic_names: bool = False, **kwargs: Any) -> Any:
        """The gradients of ``target``, reduced, in the structure of ``sources``."""
        flat = _flatten(sources)
        gradients = super().gradient(target, flat, output_gradients,   # type: ignore[misc]
                                     **kwargs)
        return _packed(sources, self._reducer(gradients, flat, use_generic_names))

    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.register_local(source)

    def get_local_and_global_gradients(self, target: Any, sources: Any,
                                       output_gradients: Any = None
                                       ) -> Tuple[List[Any], List[Any]]:
        """(local, reduced): two lists of (source, gradient)."""
        flat = _flatten(sources)
        pairs = list(zip(flat, self.gradient(target, flat, output_gradients)))
        local = [p for p in pairs if self._reducer.is_local(p[0])]
        return local, [p for p in pairs if not self._reducer.is_local(p[0])]


def _flatten(sources: Any) -> List[Any]:
    return list(sources) if isinstance(sources, (list, tuple)) and not any(
        isinstance(s, (list, tuple, dict)) for s in sources) else tf.nest.flatten(sources)


def _packed(sources: Any, gradients: List[Any]) -> Any:
    if isinstance(sources, list) and len(sources) == len(gradients):
        return gradients
    return tf.nest.pack_sequence_as(sources, gradients)


def DistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "",
                            device_sparse: str = "", compression: Any = Compression.none,
                            sparse_as_dense: bool = False, op: int = Average,
                            gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                            groups: Any = None,
                            process_set: ProcessSet = global_process_set,
                            scale_local_gradients: bool = True) -> tf.GradientTape:
    """A tape that takes over what ``gradtape`` has recorded and reduces its gradients.

        with tf.GradientTape() as tape:
            loss = ...
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
    """
    base = gradtape.__class__
    cls = type(base.__name__, (_DistributedGradientTape, base), {})
    tape = cls.__new__(cls)
    tape.__dict__.update(gradtape.__dict__)
    tape._reducer = GradientReducer(            # type: ignore[attr-defined]
        "DistributedGradientTape", device_dense, device_sparse, compression, sparse_as_dense,
        op, gradient_predivide_factor, check_groups(groups, num_groups), process_set,
        scale_local_gradients)
    return tape


def local_variables(local_layers: Any) -> List[Any]:
    """The trainable variables of a layer or a list of layers."""
    import keras
    layers = local_layers if isinstance(local_layers, (list, tuple)) else [local_layers]
    for layer in layers:
        if not isinstance(layer, keras.layers.Layer):
            raise ValueError(f"local_layers must be Keras layers, not {type(layer).__name__}")
    return [v for layer in layers for v in layer.trainable_variables]


def PartialDistributedGradientTape(gradtape: tf.GradientTape, device_dense: str = "",
                                   device_sparse: str = "",
                                   compression: Any = Compression.none,
                                   sparse_as_dense: bool = False, op: int = Average,
                                   gradient_predivide_factor: float = 1.0, num_groups: int = 0,
                                   groups: Any = None,
                                   process_set: ProcessSet = global_process_set,
                                   local_layers: Any = None,
                                   scale_local_gradients: bool = True) -> tf.GradientTape:
    """``DistributedGradientTape`` that leaves the gradients of ``local_layers`` alone."""
    if local_layers is None:
        local_layers = []
        warnings.warn("PartialDistributedGradientTape without local_layers reduces everything")
    tape = DistributedGradientTape(gradtape, device_dense, device_sparse, compression,
                                   sparse_as_dense, op, gradient_predivide_factor, num_groups,
                                   groups, process_set, scale_local_gradients)
    for variable in local_variables(local_layers):
        tape.register_local_source(variable)        # type: ignore[attr-defined]
    return tape
