"""Reducing the gradients of a step: what tapes and optimizers share.

Gradients go in buckets, each one op, so that the reduction of a bucket begins when its last
gradient is there, while the others are still computed.  Eager ops run one after the other
anyway: then it is one bucket.
"""
import warnings
from typing import Any, Dict, List, Optional, Sequence

import tensorflow as tf

from horovod import _core
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.common.util import split_list
from horovod.tensorflow import _names, _reductions, mpi_ops
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.mpi_ops import Average

# Of one op in a graph.  Small enough that several overlap with the computation, large enough
# that the 10 us an op costs in a graph do not count.
BUCKET_BYTES = 4 << 20


def scale_factors(op: int, gradient_predivide_factor: float) -> tuple:
    """(prescale, postscale); the factor splits an average into two steps."""
    if gradient_predivide_factor == 1.0:
        return 1.0, 1.0
    if op != Average:
        raise ValueError("gradient_predivide_factor is for op == Average only")
    return 1.0 / gradient_predivide_factor, gradient_predivide_factor


def check_groups(groups: Any, num_groups: int) -> Any:
    """None, a number, or a list of lists of variables."""
    if num_groups != 0:
        warnings.warn("Parameter `num_groups` has been replaced by `groups` and will be removed",
                      DeprecationWarning, stacklevel=4)
        if groups is None:
            groups = num_groups
    if groups is None:
        return None
    if isinstance(groups, (list, tuple)):
        if not all(isinstance(g, (list, tuple)) for g in groups):
            raise ValueError("groups must be a number or a list of lists of variables")
        return [list(g) for g in groups]
    if not isinstance(groups, int) or groups <= 0:
        raise ValueError("groups must be a positive number or a list of lists of variables")
    return groups


class GradientReducer:
    """Reduces lists of gradients over the ranks; None stays None."""

    def __init__(self, name: str, device_dense: str = "", device_sparse: str = "",
                 compression: Any = Compression.none, sparse_as_dense: bool = False,
                 op: int = Average, gradient_predivide_factor: float = 1.0,
                 groups: Any = None, process_set: ProcessSet = global_process_set,
                 scale_local_gradients: bool = True) -> None:
        self.name = name
        self.device_dense = device_dense
        self.device_sparse = device_sparse
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.op = op
        self.factors = scale_factors(op, gradient_predivide_factor)
        self.groups = groups
        self.process_set = process_set
        self.scale_local_gradients = scale_local_gradients
        self.local: Dict[int, Any] = {}
        _core.warm_process_set(process_set.process_set_id)

    def register_local(self, variable: Any) -> None:
        """The gradient of this variable is not reduced."""
        self.local[id(variable)] = variable

    def is_local(self, variable: Any) -> bool:
        return id(variable) in self.local

    def __call__(self, gradients: Sequence[Any], variables: Optional[Sequence[Any]] = None,
                 use_generic_names: bool = False) -> List[Any]:
        results = [self._prepared(g) for g in gradients]
        variables = list(variables) if variables is not None else [None] * len(results)
        scope = self.name if use_generic_names else _names.scope(self.name)
        paths = [f"grad_{i}" for i in range(len(results))] if use_generic_names \
            else _names.paths(variables)
        wires = [f"{scope}/{p}" for p in paths]
        todo = [i for i, g in enumerate(results)
                if g is not None and not self.is_local(variables[i])]
        self._reduce_sparse(results, [i for i in todo if _is_sparse(results[i])], wires)
        for bucket in self._buckets(results, variables,
                                    [i for i in todo if not _is_sparse(results[i])]):
            self._reduce_dense(results, bucket, wires)
        for i, gradient in enumerate(results):
            if gradient is not None and self.is_local(variables[i]):
                results[i] = self._scaled(gradient)
        return results

    def _prepared(self, gradient: Any) -> Any:
        if self.sparse_as_dense and _is_sparse(gradient):
            return tf.convert_to_tensor(gradient)
        return gradient

    def _scaled(self, gradient: Any) -> Any:
        """A local gradient counts as much as an averaged one."""
        if not self.scale_local_gradients:
            return gradient
        ranks = mpi_ops.size_op(mpi_ops._id(self.process_set))
        if _is_sparse(gradient):
            return tf.IndexedSlices(gradient.values / tf.cast(ranks, gradient.dtype),
                                    gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(ranks, gradient.dtype)

    def _reduce_sparse(self, results: List[Any], indices: List[int], wires: List[str]) -> None:
        if indices:
            _reductions.check_sparse(self.op, *self.factors)
        with _reductions.device(self.device_sparse):
            for i in indices:
                results[i] = _reductions.reduce_slices(results[i], self.op, self.process_set,
                                                       wire=wires[i], pass_by=True)

    def _reduce_dense(self, results: List[Any], bucket: List[int], wires: List[str]) -> None:
        with _reductions.device(self.device_dense):
            compressed, contexts = zip(*[self.compression.compress(
                tf.convert_to_tensor(results[i])) for i in bucket])
            reduced = mpi_ops._grouped_allreduce(
                compressed, f"{self.name}_Allreduce", self.op, *self.factors,
                process_set=self.process_set, pass_by=True,
                wire=[wires[i] for i in bucket])
            for i, result, ctx in zip(bucket, reduced, contexts):
                results[i] = self.compression.decompress(result, ctx)

    def _buckets(self, gradients: List[Any], variables: List[Any],
                 indices: List[int]) -> List[List[int]]:
        """Lists of indices; the same on all ranks, since their models are."""
        if not indices:
            return []
        if isinstance(self.groups, int):
            return [g for g in split_list(indices, min(self.groups, len(indices))) if g]
        buckets: List[List[int]] = []
        if isinstance(self.groups, list):
            members = {id(v): k for k, group in enumerate(self.groups) for v in group}
            named: Dict[int, List[int]] = {}
            for i in indices:
                if id(variables[i]) in members:
                    named.setdefault(members[id(variables[i])], []).append(i)
            buckets = list(named.values())
            indices = [i for i in indices if id(variables[i]) not in members]
        return buckets + self._by_size(gradients, indices)

    def _by_size(self, gradients: List[Any], indices: List[int]) -> List[List[int]]:
        if tf.executing_eagerly():
            return [indices] if indices else []
        buckets: List[List[int]] = []
        room = 0
        for i in indices:
            if room <= 0:
                buckets.append([])
                room = BUCKET_BYTES
            buckets[-1].append(i)
            room -= (gradients[i].shape.num_elements() or BUCKET_BYTES) * gradients[i].dtype.size
        return buckets


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


def _make_allreduce_grads_fn(name: str, device_dense: str, device_sparse: str, compression: Any,
                             sparse_as_dense: bool, op: int, gradient_predivide_factor: float,
                             groups: Any,
                             process_set: ProcessSet = global_process_set) -> GradientReducer:
    """A function of (gradients, variables); the name third-party code knows."""
    return GradientReducer(name, device_dense, device_sparse, compression, sparse_as_dense, op,
                           gradient_predivide_factor, groups, process_set)
