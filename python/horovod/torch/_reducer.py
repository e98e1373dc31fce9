"""Gradients of an optimizer on their way through buckets.

A bucket is a piece of memory that all ranks of the host share; p.grad is a view of it.  The
hook of a parameter is a C object (``_core.Slot``), which brings the gradient into the bucket
and submits the bucket when its last gradient is there: no Python runs in the steady state.
Gradients on GPUs have buckets there (``_device_buckets``).

The plan (which parameter lies where) is made after the first backward pass, when it is known
which gradients are sparse, and is the same on all ranks: they compare it.  Sparse gradients
and those for a custom compressor are reduced one by one.
"""
import enum
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from horovod import _core
from horovod.common import basics
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet
from horovod.torch import _submit, mpi_ops
from horovod.torch.compression import Compression, _CastCompressor
from horovod.torch.functions import described, digest, on_device, raise_difference

# Large enough that a bucket's fixed cost vanishes, small enough that its reduction finds
# the gradients in the cache and overlaps the rest of backward.
BUCKET_BYTES = 4 << 20
FIRST_BUCKET_BYTES = 1 << 20
_ALIGN = 64

_ordinals: Dict[Tuple[int, str], int] = {}


class _Forgetful:
    """Optimizers are counted from the beginning of a job."""

    def forget(self) -> None:
        _ordinals.clear()


_forgetful = _Forgetful()
basics._on_shutdown.add(_forgetful)


class Place:
    """Where a parameter's gradient lies in a bucket."""
    __slots__ = ("flat", "offset", "plain", "shape", "stride")

    def __init__(self, flat: torch.Tensor, offset: int, param: torch.Tensor) -> None:
        self.flat, self.offset, self.shape = flat, offset, param.shape
        self.plain = not _is_channels_last(param)
        self.stride = torch.empty(param.shape, device="meta").stride() \
            if self.plain else param.stride()

    def view(self) -> torch.Tensor:
        return self.flat.as_strided(self.shape, self.stride, self.offset)

    def ask_for_plan(self, op: int) -> None:
        self.flat[-1] = {mpi_ops.Min: -1, mpi_ops.Product: 0}.get(op, 1)


def _is_channels_last(param: torch.Tensor) -> bool:
    if param.is_contiguous():
        return False
    return (param.dim() == 4 and param.is_contiguous(memory_format=torch.channels_last)) or \
        (param.dim() == 5 and param.is_contiguous(memory_format=torch.channels_last_3d))


class When(enum.Enum):
    """When gradients that have all come are waited for."""
    BACKWARD = "at the end of backward"
    STEP = "in step or synchronize"
    NEVER = "they are only counted: Adasum reduces updates"


class GradientReducer:
    """Reduces the gradients of the parameters it watches."""

    def __init__(self, op: int, compression: Any, passes: int, predivide: float,
                 sparse_as_dense: bool, process_set: ProcessSet) -> None:
        self.op = op
        self.compression = compression
        self.prescale, self.postscale = 1.0 / predivide, predivide
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.params: List[torch.Tensor] = []        # those that have a slot
        self.names: List[str] = []
        self.groups: Optional[List[List[torch.Tensor]]] = None
        self.split: int = 0                         # groups given as a number
        self._watched: List[Tuple[str, torch.Tensor]] = []
        self._slots: List[Any] = []
        self._hooks: List[Any] = []
        self._places: Dict[int, Place] = {}
        self._sparse: Dict[int, int] = {}           # index -> number of sparse dimensions
        self._flight: Dict[int, Callable[[], None]] = {}    # reduced one by one
        self._was_sparse: Dict[int, int] = {}       # densified in this step
        self._device: Any = ()                      # DeviceBuckets, once there are any
        self._tag: Optional[str] = None
        self._plans = 0
        self.attached = False
        self.when = When.BACKWARD
        me = weakref.ref(self)
        self.native = _core.Reducer(passes, lambda *a: me()._fallback(*a),   # type: ignore
                                    lambda *a: me()._renew(*a),         # type: ignore
                                    lambda: me()._complete())           # type: ignore
        basics._on_shutdown.add(self)

    # -- parameters and hooks -----------------------------------------------------

    def watch(self, name: str, param: torch.Tensor) -> None:
        """Reduces the gradient of this parameter from the moment on that it wants one."""
        self._watched.append((name, param))

    def adopt(self) -> None:
        """Gives slots to watched parameters that have become trainable."""
        if not any(p.requires_grad for _, p in self._watched):
            return
        waiting, self._watched = self._watched, []
        for name, param in waiting:
            if not param.requires_grad:
                self._watched.append((name, param))
                continue
            self.params.append(param)
            self.names.append(name)
            self._slots.append(self.native.add())
            if self.attached:
                self._hook(len(self.params) - 1)

    def _hook(self, index: int) -> None:
        self._hooks.append(self.params[index].register_post_accumulate_grad_hook(
            self._slots[index]))

    def attach(self) -> None:
        if not self.attached:
            self.attached = True
            self.adopt()
            for index in range(len(self.params)):
                if len(self._hooks) <= index:
                    self._hook(index)

    def detach(self) -> None:
        """Removes the hooks and drops what is in flight."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.attached = False
        self.reset()

    # -- the step -----------------------------------------------------------------

    def synchronize(self) -> None:
        """Reduces everything that is not reduced yet; p.grad holds the results."""
        self.adopt()
        self._reduce()
        self._rearm()

    def _reduce(self) -> None:
        """Submits what is not submitted yet, and waits for all of it.  A failure ends the
        step: half of its gradients may be reduced."""
        if self.native.step_state == "REDUCED" and not self.native.missing:
            return
        try:
            if self.native.plan_state == "NONE":
                self._make_plan()
            self.native.collect(self.params)
            kept = self.native.wait(self.params)
            with torch.no_grad():
                for index in kept:
                    self._bring_back(index)
        except BaseException:
            self.reset()
            raise

    def _complete(self) -> None:
        """All gradients are under way: they are waited for at the end of backward, so that
        whoever looks at p.grad next (clipping, unscaling) sees reduced ones."""
        if self.when is not When.BACKWARD:
            return
        me = weakref.ref(self)

        def finish() -> None:
            reducer = me()
            if reducer is not None:
                reducer._reduce()
        torch.autograd.Variable._execution_engine.queue_callback(finish)

    def _rearm(self) -> None:
        self._was_sparse.clear()
        if self._device:
            self._device.rearm()
        self.native.reset()

    def reset(self) -> None:
        """Forgets what is in flight."""
        self._flight.clear()
        self._rearm()

    def forget(self) -> None:
        """The job is over: the next one makes its own plan."""
        self._flight.clear()
        self._was_sparse.clear()
        self._sparse.clear()
        self._places.clear()
        self._device = ()
        self._tag = None
        self._plans = 0
        self.native.forget()

    def is_touched(self) -> bool:
        """Whether gradients have come since the last step."""
        return self.native.step_state != "IDLE"

    def may_zero(self) -> bool:
        """Whether zero_grad may be called now: nothing is under way, or a GradScaler has
        skipped the step because of an overflow."""
        if not self.is_touched():
            return True
        if self.native.step_state != "REDUCED":
            return False
        if all(bool(torch.isfinite(p.grad).all()) for p in self.params
               if p.grad is not None and not p.grad.is_sparse):
            return False
        self._rearm()
        return True

    # -- the plan -----------------------------------------------------------------

    def _make_plan(self) -> None:
        self._agree()
        self._device = ()
        buckets = [self._bucket(i, members) for i, members in enumerate(self._partition())
                   if not self._put_on_device(i, members)]
        self._plans += 1
        self.native.plan(self.op, self.process_set.process_set_id, self._scales()[0],
                         self._scales()[1], buckets)

    def _scales(self) -> Tuple[float, float]:
        return (self.prescale, self.postscale) if self.op == mpi_ops.Average else (1.0, 1.0)

    def _agree(self) -> None:
        """Compares the parameters with the other ranks, and learns which are sparse."""
        if self._tag is None:
            key = self.process_set.process_set_id, f"{digest(self.names):x}"
            ordinal = _ordinals.get(key, 0)
            _ordinals[key] = ordinal + 1
            self._tag = f"optimizer.{key[1]}.{ordinal}"
        layout = [described(n, p, f"{' channels last' if _is_channels_last(p) else ''}"
                                  f"{on_device(p)}") for n, p in zip(self.names, self.params)]
        number = digest(layout)
        dims = [self._sparse_dims(i, p) for i, p in enumerate(self.params)]
        mine = torch.tensor([number, -number, *dims], dtype=torch.int64, device="cpu")
        agreed = mpi_ops.allreduce(mine, name=f"{self._tag}.plan.{self._plans}",
                                   op=mpi_ops.Max, process_set=self.process_set).tolist()
        if agreed[0] != -agreed[1]:
            raise_difference(layout, "DistributedOptimizer", self.process_set)
        self._sparse = {i: d for i, d in enumerate(agreed[2:]) if d > 0}

    def _sparse_dims(self, index: int, param: torch.Tensor) -> int:
        if self.sparse_as_dense:
            return 0
        if param.grad is not None and param.grad.is_sparse:
            return param.grad.sparse_dim()
        return max(self._sparse.get(index, 0), self._was_sparse.get(index, 0))

    def _wire_dtype(self, param: torch.Tensor) -> Optional[torch.dtype]:
        """The dtype in the bucket; None: reduced on its own."""
        if isinstance(self.compression, type) and \
                issubclass(self.compression, _CastCompressor) and param.is_floating_point():
            return self.compression.wire_dtype
        if self.compression is not Compression.none or param.dtype not in _submit.DTYPES:
            return None
        return param.dtype

    def _partition(self) -> List[List[int]]:
        """Lists of parameters that share a bucket, in the order backward reaches them."""
        order = [i for i in reversed(range(len(self.params)))
                 if i not in self._sparse and self._wire_dtype(self.params[i]) is not None]
        result: List[List[int]] = []
        for chunk in self._grouped(order):
            alike: Dict[Any, List[int]] = {}
            for i in chunk:
                key = self._wire_dtype(self.params[i]), self.params[i].device
                alike.setdefault(key, []).append(i)
            for members in alike.values():
                result.extend([members] if self._has_groups() else self._by_size(members))
        return result

    def _has_groups(self) -> bool:
        return self.split > 0 or self.groups is not None

    def _grouped(self, order: List[int]) -> List[List[int]]:
        if self.split > 0:
            from horovod.common.util import split_list
            chunks = split_list(sorted(order), self.split)
            return [list(reversed(c)) for c in reversed(chunks) if c]
        if self.groups is None:
            return [order]
        group_of = {id(p): g for g, group in enumerate(self.groups) for p in group}
        chunks_by: Dict[Any, List[int]] = {}
        for i in order:
            key = group_of.get(id(self.params[i]), ("alone", i))
            chunks_by.setdefault(key, []).append(i)
        return list(chunks_by.values())

    def _by_size(self, members: List[int]) -> List[List[int]]:
        result: List[List[int]] = []
        room = 0
        first, others = FIRST_BUCKET_BYTES, BUCKET_BYTES
        if not self.params[members[0]].is_cpu:
            from horovod.torch import _device_buckets
            first, others = _device_buckets.FIRST_BUCKET_BYTES, _device_buckets.BUCKET_BYTES
        for i in members:
            dtype = self._wire_dtype(self.params[i])
            nbytes = self.params[i].numel() * dtype.itemsize            # type: ignore
            if nbytes > room or not result:
                result.append([])
                room = first if len(result) == 1 else others
            result[-1].append(i)
            room -= nbytes
        return result

    def _laid_out(self, members: List[int], dtype: torch.dtype) -> Tuple[List[int], int]:
        """(where each begins, how long the bucket is), in elements."""
        step = _ALIGN // dtype.itemsize
        offsets, count = [], 0
        for i in members:
            offsets.append(count)
            count += -(-self.params[i].numel() // step) * step
        return offsets, count

    def _bucket(self, number: int, members: List[int]) -> tuple:
        """The description ``_core.Reducer.plan`` wants; fills ``_places``."""
        dtype = self._wire_dtype(self.params[members[0]])
        assert dtype is not None
        item = dtype.itemsize
        offsets, count = self._laid_out(members, dtype)
        flat = _memory((count + _ALIGN // item) * item).view(dtype)[:count + 1]
        flat.zero_()
        if self.op == mpi_ops.Product:
            flat[-1] = 1
        described = []
        for i, offset in zip(members, offsets):
            place = self._places[i] = Place(flat, offset, self.params[i])
            view = place.view()
            described.append((i, view, dtype, view.data_ptr(), view.numel() * item,
                              self.params[i].dtype == dtype, place.plain))
        return (f"allreduce.{self._bucket_name(number, members)}", flat, flat.data_ptr(),
                flat.numel(), _submit.DTYPES[dtype], described)

    def _put_on_device(self, number: int, members: List[int]) -> bool:
        """Makes a bucket where the parameters are, if that is no CPU."""
        param = self.params[members[0]]
        if param.is_cpu:
            return False
        from horovod.torch._device_buckets import DeviceBucket, DeviceBuckets
        self._device = self._device or DeviceBuckets()
        dtype = self._wire_dtype(param)
        assert dtype is not None
        offsets, count = self._laid_out(members, dtype)
        flat = param.detach().new_zeros(count, dtype=dtype)
        before, after = self._scales()
        self._device.add(DeviceBucket(
            self._bucket_name(number, members), flat, {i: self.params[i] for i in members},
            {i: Place(flat, o, self.params[i]) for i, o in zip(members, offsets)},
            dict(op=self.op, prescale_factor=before, postscale_factor=after,
                 process_set=self.process_set)))
        return True

    def _bucket_name(self, number: int, members: List[int]) -> str:
        return f"{self._span(members)}.{self._tag}.{self._plans}.{number}"

    def _span(self, members: List[int]) -> str:
        """Which parameters these are, for whoever reads a timeline or a stall report."""
        ends = sorted({min(members), max(members)})
        return "..".join(self.names[i][:200] for i in ends)

    # -- gradients that need more than a copy -------------------------------------

    def _renew(self, index: int, view: torch.Tensor) -> torch.Tensor:
        """Somebody has kept the p.grad of an old step: it gets memory of its own."""
        view.data = view.detach().clone(memory_format=torch.preserve_format)
        return self._places[index].view()

    def _fallback(self, index: int, grad: Optional[torch.Tensor]) -> bool:
        """Brings an unusual gradient in; True if p.grad is to stay what it is."""
        with torch.no_grad():
            if index in self._sparse:
                self._submit_sparse(index, grad)
                return True
            if index in self._device:
                self._device.take(index, grad)
                return True
            if index not in self._places or self.native.plan_state == "NONE":
                self._submit_alone(index, grad)
                return True
            return self._into_bucket(index, grad)

    def _into_bucket(self, index: int, grad: Optional[torch.Tensor]) -> bool:
        place = self._places[index]
        view = place.view()
        if grad is None:
            self.params[index].grad = torch.zeros_like(self.params[index])
            view.zero_()
            return True
        if grad.is_sparse:
            self._was_sparse[index] = grad.sparse_dim()
            view.copy_(grad.to_dense())
            if not self.sparse_as_dense:
                place.ask_for_plan(self.op)
            return True
        view.copy_(grad)
        if grad.dtype != view.dtype:
            return True
        self.params[index].grad = self.native.view(index)
        return False

    def _bring_back(self, index: int) -> None:
        """The result of an unusual gradient becomes p.grad."""
        finish = self._flight.pop(index, None)
        if finish is not None:
            finish()
            return
        if index in self._device:
            self._device.bring_back(index)
        if index not in self._places:
            return
        param, view = self.params[index], self._places[index].view()
        if index in self._was_sparse:
            param.grad = view.to_sparse(self._was_sparse[index])
        elif param.grad is None or param.grad.is_sparse:
            param.grad = view.to(dtype=param.dtype, copy=True)
        else:
            param.grad.copy_(view)

    def _submit_sparse(self, index: int, grad: Optional[torch.Tensor]) -> None:
        param, dims = self.params[index], self._sparse[index]
        if grad is None:
            grad = torch.zeros(param.shape, dtype=param.dtype,
                               device=param.device).to_sparse(dims)
        elif not grad.is_sparse:
            grad = grad.to_sparse(dims)
        before, after = self._scales()
        if before != 1.0:
            grad = grad * before
        if isinstance(self.compression, type) and issubclass(self.compression,
                                                             _CastCompressor):
            grad = grad.to(self.compression.wire_dtype)
        wait = mpi_ops.sparse_allreduce_async(grad, self.names[index], self.op,
                                              self.process_set)

        def finish() -> None:
            result = wait().to(param.dtype)
            param.grad = (result * after if after != 1.0 else result).coalesce()
        self._flight[index] = finish

    def _submit_alone(self, index: int, grad: Optional[torch.Tensor]) -> None:
        param = self.params[index]
        if grad is None:
            grad = param.grad = torch.zeros_like(param)
        sparse_dims = grad.sparse_dim() if grad.is_sparse else 0
        dense = grad.to_dense() if sparse_dims else grad
        compressed, ctx = self.compression.compress(dense)
        handle = mpi_ops.allreduce_async_(compressed, name=self.names[index], op=self.op,
                                          prescale_factor=self._scales()[0],
                                          postscale_factor=self._scales()[1],
                                          process_set=self.process_set)

        def finish() -> None:
            result = self.compression.decompress(mpi_ops.synchronize(handle), ctx)
            if sparse_dims:
                param.grad = result.to_sparse(sparse_dims)
            elif param.grad is None or param.grad.shape != result.shape:
                param.grad = result
            elif result is not param.grad:
                param.grad.copy_(result)
        self._flight[index] = finish


def _memory(nbytes: int) -> torch.Tensor:
    """Bytes that the ranks of this host share, or ordinary ones if there are none."""
    capsule = _core.alloc(nbytes)
    if capsule is None:
        return _submit.stage(torch.empty(nbytes, dtype=torch.uint8, device="cpu"))
    return _submit._from_dlpack(capsule)
