"""Gradients on GPUs on their way through buckets.

A bucket is one tensor on the device, and p.grad is a view of it.  When the last gradient of a
bucket is there it is handed over as one in-place allreduce, on the stream that is current in
that hook; the stream of the core runs beside the rest of backward.

Rules, beside those of src/python/py_bucket.c
1. Gradients are copied into the bucket in one call, when the last of them is there.
2. Hooks may run on several streams: the one that hands the bucket over waits for the others.
3. There is no flag that asks for a new plan, since the host would have to wait for it: a
   gradient that has become sparse is reduced densely until something else brings a new plan.
4. Whoever keeps a p.grad of an old step keeps its values: before the bucket is written again,
   such a view gets memory of its own.
"""
import sys
from typing import Any, Dict, Iterable, List, Optional, Set

import torch

from horovod import _core
from horovod.torch import _gpu, _submit, mpi_ops

# As torch's DistributedDataParallel has them; not measured with this core.
BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20

_sample = [object()]
_ALONE = sys.getrefcount(_sample[0])        # of an object that only one list holds


class DeviceBucket:
    """Parameters of one dtype on one device whose gradients travel together."""

    def __init__(self, name: str, flat: torch.Tensor, params: Dict[int, torch.Tensor],
                 places: Dict[int, Any], call: Dict[str, Any]) -> None:
        self.name, self.flat, self.params, self.places = name, flat, params, places
        self._call = call                   # op, factors and set of the allreduce
        self._at = {index: at for at, index in enumerate(params)}
        self._views = [places[index].view() for index in params]
        self._ready: Dict[int, Optional[torch.Tensor]] = {}
        self._sparse: Dict[int, int] = {}   # index -> sparse dimensions of this step
        self._streams: Set[Any] = set()
        self._handle: Optional[int] = None

    def take(self, index: int, grad: Optional[torch.Tensor]) -> None:
        """A gradient is ready; None counts as zeros."""
        if grad is not None and grad.is_sparse:
            self._sparse[index] = grad.sparse_dim()
            grad = grad.to_dense()
        self._ready[index] = grad
        if self.flat.is_cuda:
            self._streams.add(_gpu.stream_of(self.flat.device))
        if len(self._ready) == len(self.params):
            self._hand_over()

    def _hand_over(self) -> None:
        if len(self._streams) > 1:
            current = _gpu.stream_of(self.flat.device)
            for stream in self._streams - {current}:
                current.wait_stream(stream)
        self._fill()
        self._streams.clear()
        self._handle = mpi_ops.allreduce_async_(self.flat, name=self.name, **self._call)

    def _fill(self) -> None:
        """The gradients lie in the bucket, and p.grad is there wherever it may be."""
        into: List[torch.Tensor] = []
        values: List[torch.Tensor] = []
        for index, grad in self._ready.items():
            at = self._at[index]
            if grad is self._views[at]:
                continue
            if sys.getrefcount(self._views[at]) > _ALONE:
                self._move_out(at, index)
            if grad is None:
                self._views[at].zero_()
            else:
                into.append(self._views[at])
                values.append(grad)
        if into:
            torch._foreach_copy_(into, values)
        for index, param in self.params.items():
            if self._may_be_view(index):
                param.grad = self._views[self._at[index]]

    def _move_out(self, at: int, index: int) -> None:
        view = self._views[at]
        view.data = view.detach().clone(memory_format=torch.preserve_format)
        self._views[at] = self.places[index].view()

    def _may_be_view(self, index: int) -> bool:
        return self.params[index].dtype == self.flat.dtype and index not in self._sparse

    def bring_back(self, index: int) -> None:
        """The result becomes p.grad; waits for the bucket if nobody has."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            mpi_ops.synchronize(handle)
        param, view = self.params[index], self._views[self._at[index]]
        if index in self._sparse:
            param.grad = view.to_sparse(self._sparse[index]).to(param.dtype)
        elif self._may_be_view(index):
            if param.grad is not view:
                param.grad = view
        elif param.grad is None:
            param.grad = view.to(dtype=param.dtype, copy=True)
        else:
            param.grad.copy_(view)

    def rearm(self) -> None:
        """The next step may begin.  What is in flight is left alone, with its memory."""
        self._ready.clear()
        self._sparse.clear()
        self._streams.clear()
        if self._handle is None:
            return
        pending = _submit.handle_map.pop(self._handle, None)
        self._handle = None
        if pending is not None:
            _core.orphan(pending.native, pending)
        self.flat = torch.zeros_like(self.flat)
        for index, at in self._at.items():
            self.places[index].flat = self.flat
            self._views[at] = self.places[index].view()


class DeviceBuckets:
    """All buckets of an optimizer that lie on devices."""

    def __init__(self) -> None:
        self._of: Dict[int, DeviceBucket] = {}

    def add(self, bucket: DeviceBucket) -> None:
        for index in bucket.params:
            self._of[index] = bucket

    def __contains__(self, index: int) -> bool:
        return index in self._of

    def take(self, index: int, grad: Optional[torch.Tensor]) -> None:
        self._of[index].take(index, grad)

    def bring_back(self, index: int) -> None:
        self._of[index].bring_back(index)

    def _all(self) -> Iterable[DeviceBucket]:
        return {id(b): b for b in self._of.values()}.values()

    def rearm(self) -> None:
        for bucket in self._all():
            bucket.rearm()
