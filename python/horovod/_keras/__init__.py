"""Keras 3 on TensorFlow: what ``horovod.tensorflow.keras`` and ``horovod.keras`` share.

Keras hands its gradients to ``optimizer.apply``: there they are reduced, before anything of
Keras looks at them, so that clipping, loss scaling, averaging and accumulation see the same
numbers on every rank.
"""
import warnings
from typing import Any, Callable, List, Optional

import keras
import tensorflow as tf

from horovod.common.advice import advised
from horovod.tensorflow._gradients import GradientReducer, check_groups
from horovod.tensorflow._tape import local_variables
from horovod.tensorflow.gradient_aggregation_eager import LocalGradientAggregationHelperEager
from horovod.tensorflow.mpi_ops import Average, Sum
from horovod.tensorflow.util import resource


def require_tensorflow_backend() -> None:
    """The ops are TensorFlow's; with another backend nothing would be reduced."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return
    advice = {"torch": "with KERAS_BACKEND=torch write the training loop with horovod.torch",
              "jax": "there is no Horovod for JAX"}.get(backend, "")
    raise ImportError(advised(
        f"Horovod reduces gradients of Keras with the TensorFlow backend only, not "
        f"with {backend!r}: set KERAS_BACKEND=tensorflow" +
        (f"; {advice}" if advice else "")))


class _Variables(list):
    """Scripts write both ``optimizer.variables`` and ``optimizer.variables()``."""

    def __call__(self) -> list:
        return self


class _Distributed:
    """Comes before the class of an optimizer."""
    _reducer: GradientReducer
    _aggregator: Optional[LocalGradientAggregationHelperEager]
    _reduces = True                 # False while the optimizer around this one has reduced

    @property
    def variables(self) -> _Variables:
        return _Variables(super().variables)            # type: ignore[misc]

    def register_local_var(self, variable: Any) -> None:
        """The gradient of this variable is not reduced."""
        self._reducer.register_local(variable)

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        if not self._reduces:
            return super().apply(grads, trainable_variables)    # type: ignore[misc]
        grads = list(grads)
        variables = self._trainable_variables if trainable_variables is None \
            else list(trainable_variables)
        if self._aggregator is None:
            reduced = self._reducer(grads, variables)
            return super().apply(reduced, trainable_variables)  # type: ignore[misc]
        if not self.built:                              # slots, before the branches of tf.cond
            with tf.init_scope():
                self.build(variables)                   # type: ignore[attr-defined]
        parent = super()

        def reduce_and_apply(sums: List[Any]) -> None:
            parent.apply(self._reducer(sums, variables), trainable_variables)  # type: ignore

        self._aggregator.apply_with(grads, reduce_and_apply,
                                    lambda: self.iterations.assign_add(1))
        return None

    def stateless_apply(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("a distributed optimizer works with the TensorFlow backend "
                                  "of Keras, which calls apply()")


def is_distributed(optimizer: Any) -> bool:
    return isinstance(optimizer, _Distributed)


def _class_of(base: type) -> type:
    """A class with the name of ``base``.  Objects say that they are of ``base``, so that saved
    models name it and not us."""
    shown = property(lambda self: base)
    return type(base.__name__, (_Distributed, base),
                {"__module__": "horovod._keras", "__class__": shown})


def _take_over_state(optimizer: Any, source: Any) -> None:
    if not source.built:
        return
    optimizer.build(source._trainable_variables)
    for target, value in zip(optimizer.variables, source.variables):
        resource(target).assign(resource(value))


def create_distributed_optimizer(
        optimizer: Any, name: Optional[str], device_dense: str, device_sparse: str,
        compression: Any, sparse_as_dense: bool, gradient_predivide_factor: float, op: int,
        backward_passes_per_step: int, average_aggregated_gradients: bool, num_groups: int,
        groups: Any, process_set: Any, scale_local_gradients: bool) -> Any:
    require_tensorflow_backend()
    if op not in (Average, Sum):
        raise ValueError("op must be hvd.Average or hvd.Sum with Keras")
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    base = type(optimizer)
    if is_distributed(optimizer):
        raise ValueError(advised("the optimizer is a DistributedOptimizer already"))
    reducer = GradientReducer(
        name or f"Distributed{base.__name__}", device_dense, device_sparse, compression,
        sparse_as_dense, op, gradient_predivide_factor, check_groups(groups, num_groups),
        process_set, scale_local_gradients)
    aggregator = None
    if backward_passes_per_step > 1:
        aggregator = LocalGradientAggregationHelperEager(
            backward_passes_per_step, sparse_as_dense, average_aggregated_gradients)
    result = _class_of(base).from_config(optimizer.get_config())    # type: ignore[attr-defined]
    object.__setattr__(result, "_reducer", reducer)
    object.__setattr__(result, "_aggregator", aggregator)
    _take_over_state(result, optimizer)
    _watch_compile()
    return result


def register_local_layers(optimizer: Any, local_layers: Any) -> Any:
    for variable in local_variables(local_layers if local_layers is not None else []):
        optimizer.register_local_var(variable)
    return optimizer


# -- what model.compile does with the optimizer -----------------------------------------


class _LossScale(keras.optimizers.LossScaleOptimizer):
    """What ``compile`` puts around an optimizer with float16: it must look for overflows after
    the gradients are reduced, or one rank skips a step that the others take."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        inner = self.inner_optimizer
        variables = self._trainable_variables if trainable_variables is None \
            else list(trainable_variables)
        reduced = inner._reducer(list(grads), variables)
        object.__setattr__(inner, "_reduces", False)
        try:
            super().apply(reduced, trainable_variables)
        finally:
            object.__setattr__(inner, "_reduces", True)


def _compiled(model: Any) -> None:
    """After ``compile``: an optimizer around ours reduces first, and XLA stays out."""
    optimizer = getattr(model, "optimizer", None)
    if type(optimizer) is keras.optimizers.LossScaleOptimizer and \
            is_distributed(optimizer.inner_optimizer):
        optimizer.__class__ = _shown_as_loss_scale
        optimizer = optimizer.inner_optimizer
    if is_distributed(optimizer) and model.jit_compile:
        warnings.warn("jit_compile=True is not possible with a DistributedOptimizer: XLA knows "
                      "no collective operations of other processes. Going on without it.")
        model.jit_compile = False


_shown_as_loss_scale = type("LossScaleOptimizer", (_LossScale,), {
    "__module__": "horovod._keras",
    "__class__": property(lambda self: keras.optimizers.LossScaleOptimizer)})


def _watch_compile() -> None:
    """``compile`` decides about XLA and loss scaling without asking the optimizer, so it is
    looked at afterwards; from the first distributed optimizer of the process on."""
    trainer = next(c for c in keras.Model.__mro__ if "compile" in c.__dict__)
    original = trainer.compile
    if getattr(original, "_horovod", False):
        return

    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:       # noqa: A001
        result = original(self, *args, **kwargs)
        _compiled(self)
        return result
    compile.__doc__ = original.__doc__
    compile.__wrapped__ = original                  # type: ignore[attr-defined]
    compile._horovod = True                         # type: ignore[attr-defined]
    trainer.compile = compile                       # type: ignore[attr-defined]


# -- loading ----------------------------------------------------------------------------


def load_model(filepath: Any, wrap: Callable, custom_optimizers: Any = None,
               custom_objects: Any = None, legacy_opts: bool = False) -> Any:
    """A saved model, its optimizer wrapped and in the state it was saved in."""
    require_tensorflow_backend()
    if legacy_opts:
        raise ValueError("legacy_opts=True: Keras 3 has no legacy optimizers; load the weights "
                         "into a new model instead")
    objects = {cls.__name__: cls for cls in custom_optimizers or []}
    objects.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=objects)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return model
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer.inner_optimizer = wrap(optimizer.inner_optimizer)
    else:
        model.optimizer = wrap(optimizer)
    _compiled(model)
    model.train_function = None
    return model
