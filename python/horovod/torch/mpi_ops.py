"""The operations: allreduce, allgather, broadcast, alltoall, reducescatter, and their kin.

Each comes as ``op`` (waits, returns a new tensor, differentiable), ``op_async`` (returns a
handle for ``synchronize``) and, where it makes sense, ``op_`` and ``op_async_`` (in place)
and ``grouped_...`` (several tensors as one, all or nothing).

All members of ``process_set`` must call an operation with the same name.  Without a name,
the first unnamed allreduce of one rank meets the first one of the others, and so on.
"""
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch

from horovod import _core
from horovod.common.delegates import *                          # noqa: F401,F403
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch import _submit
from horovod.torch._submit import (ALLGATHER, ALLREDUCE, ALLTOALL, BARRIER, BROADCAST, JOIN,
                                   REDUCESCATTER, poll, synchronize)
from horovod.torch.compression import Compression

_handle_map = _submit.handle_map

_run = _core.run_tensor
_run_new = _core.run_new
_problems = _submit.problems            # empty nearly always: then the fast way is open


def shutdown() -> None:
    """Leaves the job.  Operations that are under way fail, here and on the others; all
    handles are forgotten.  ``init`` may follow."""
    _basics.shutdown()
    _submit.forget_handles()


def _reduction(op: Optional[int], average: Optional[bool]) -> int:
    if average is None:
        return Average if op is None else op
    return handle_average_backwards_compatibility(op, average)


def _wants_grad(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


# -- allreduce ----------------------------------------------------------------------


def _allreduce_async(tensor: torch.Tensor, name: Optional[str], op: int, prescale: float,
                     postscale: float, process_set: ProcessSet) -> int:
    _submit.check(ALLREDUCE, name, process_set, [tensor])
    return _submit.into_new(ALLREDUCE, op, process_set, -1, prescale, postscale, name,
                            [tensor])


def _allreduce(tensor: torch.Tensor, name: Optional[str], op: int, prescale: float,
               postscale: float, process_set: ProcessSet) -> torch.Tensor:
    """A new tensor, outside autograd."""
    if not _problems and isinstance(tensor, torch.Tensor) and \
            tensor.layout is torch.strided:
        output = torch.empty_like(tensor, memory_format=torch.contiguous_format,
                                  requires_grad=False)
        if _run(ALLREDUCE, op, process_set.process_set_id, -1, prescale, postscale, name,
                tensor, output) is None:
            return output
    return synchronize(_allreduce_async(tensor, name, op, prescale, postscale, process_set))


class HorovodAllreduce(torch.autograd.Function):
    """An allreduce that can be differentiated."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, average: Optional[bool],
                name: Optional[str], op: Optional[int], prescale_factor: float,
                postscale_factor: float, process_set: ProcessSet) -> torch.Tensor:
        ctx.args = _reduction(op, average), prescale_factor, postscale_factor, process_set
        output = _allreduce(tensor, name, *ctx.args)
        ctx.mine = _chosen(tensor, output, ctx.args[0])
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return (_allreduce_gradient(grad, ctx.mine, *ctx.args), None, None, None, None, None,
                None)


def _chosen(tensor: torch.Tensor, output: torch.Tensor, op: int) -> Optional[torch.Tensor]:
    """Where a minimum or maximum was taken from this rank."""
    return (tensor.detach() == output) if op in (Min, Max) else None


def _allreduce_gradient(grad: torch.Tensor, mine: Optional[torch.Tensor], op: int,
                        prescale: float, postscale: float,
                        process_set: ProcessSet) -> torch.Tensor:
    if op == Product:
        raise NotImplementedError("a Product allreduce has no gradient here")
    if op in (Min, Max):
        if prescale != 1.0 or postscale != 1.0:
            raise NotImplementedError("a Min or Max allreduce with scale factors has no "
                                      "gradient here")
        assert mine is not None
        ties = _allreduce(mine.to(grad.dtype), None, Sum, 1.0, 1.0, process_set)
        total = allreduce(grad, op=Sum, process_set=process_set)
        return total * mine / ties.clamp(min=1)
    return allreduce(grad, op=op, prescale_factor=prescale, postscale_factor=postscale,
                     process_set=process_set)


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None,
              name: Optional[str] = None, compression: Any = Compression.none,
              op: Optional[int] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The reduction of the tensors of all ranks, element by element, as a new tensor.

    ``op`` is Average (the default), Sum, Min, Max, Product or Adasum; the inputs are
    multiplied by ``prescale_factor`` before and the result by ``postscale_factor`` after it.
    Integers are truncated toward zero.  The gradient of an allreduce is an allreduce of
    the gradients.  ``average`` is deprecated.

        loss = hvd.allreduce(loss.detach(), name="loss")        # the mean over the ranks
    """
    op = _reduction(op, average)
    if compression is Compression.none:
        return _allreduce_grad(tensor, name, op, prescale_factor, postscale_factor,
                               process_set)
    compressed, ctx = compression.compress(tensor)
    reduced = _allreduce_grad(compressed, name, op, prescale_factor, postscale_factor,
                              process_set)
    return compression.decompress(reduced, ctx)


def _allreduce_grad(tensor: torch.Tensor, name: Optional[str], op: int, prescale: float,
                    postscale: float, process_set: ProcessSet) -> torch.Tensor:
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled():
        return HorovodAllreduce.apply(tensor, None, name, op, prescale, postscale,
                                      process_set)
    return _allreduce(tensor, name, op, prescale, postscale, process_set)


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None,
                    name: Optional[str] = None, op: Optional[int] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts an allreduce into a new tensor; the handle for ``synchronize``.  The tensor
    must not be changed before that."""
    return _allreduce_async(tensor, name, _reduction(op, average), prescale_factor,
                            postscale_factor, process_set)


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None,
               name: Optional[str] = None, op: Optional[int] = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """As ``allreduce``, in place; returns the tensor itself.  Autograd does not see it."""
    if average is not None or op is None:
        op = _reduction(op, average)
    if not _problems and _run(ALLREDUCE, op, process_set.process_set_id, -1,
                                  prescale_factor, postscale_factor, name, tensor,
                                  tensor) is None:
        return tensor
    return synchronize(_submit.in_place(ALLREDUCE, op, process_set, -1, prescale_factor,
                                        postscale_factor, name, [tensor]))


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None,
                     name: Optional[str] = None, op: Optional[int] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts an allreduce in place; the handle for ``synchronize``.  From now on the memory
    of the tensor cannot be resized, as after ``Tensor.numpy()``."""
    return _submit.in_place(ALLREDUCE, _reduction(op, average), process_set, -1,
                            prescale_factor, postscale_factor, name, [tensor])


# -- grouped allreduce --------------------------------------------------------------


def _some(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    tensors = list(tensors)
    if not tensors:
        raise ValueError("a grouped operation needs at least one tensor")
    return tensors


def _grouped_allreduce_async(tensors: Sequence[torch.Tensor], name: Optional[str], op: int,
                             prescale: float, postscale: float,
                             process_set: ProcessSet) -> int:
    tensors = _some(tensors)
    _submit.check(ALLREDUCE, name, process_set, tensors, True)
    return _submit.into_new(ALLREDUCE, op, process_set, -1, prescale, postscale, name,
                            tensors, grouped=True)


class HorovodGroupedAllreduce(torch.autograd.Function):
    """A grouped allreduce that can be differentiated, output by output."""

    @staticmethod
    def forward(ctx: Any, average: Optional[bool], name: Optional[str], op: Optional[int],
                prescale_factor: float, postscale_factor: float, process_set: ProcessSet,
                *tensors: torch.Tensor) -> tuple:
        ctx.args = _reduction(op, average), prescale_factor, postscale_factor, process_set
        outputs = synchronize(_grouped_allreduce_async(tensors, name, *ctx.args))
        ctx.mine = [_chosen(t, o, ctx.args[0]) for t, o in zip(tensors, outputs)]
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        op, prescale, postscale, process_set = ctx.args
        if op in (Min, Max, Product):
            results: Any = [_allreduce_gradient(g, m, *ctx.args)
                            for g, m in zip(grads, ctx.mine)]
        else:
            results = grouped_allreduce(list(grads), op=op, prescale_factor=prescale,
                                        postscale_factor=postscale, process_set=process_set)
        return (None, None, None, None, None, None, *results)


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                      name: Optional[str] = None, compression: Any = Compression.none,
                      op: Optional[int] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """``allreduce`` of several tensors as one operation; a list of new tensors."""
    op = _reduction(op, average)
    compressed, contexts = zip(*[compression.compress(t) for t in _some(tensors)])
    if _wants_grad(compressed):
        outputs = HorovodGroupedAllreduce.apply(None, name, op, prescale_factor,
                                                postscale_factor, process_set, *compressed)
    else:
        outputs = synchronize(_grouped_allreduce_async(
            compressed, name, op, prescale_factor, postscale_factor, process_set))
    return [compression.decompress(o, ctx) for o, ctx in zip(outputs, contexts)]


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                            name: Optional[str] = None, op: Optional[int] = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allreduce into new tensors; the handle of all of them."""
    return _grouped_allreduce_async(tensors, name, _reduction(op, average), prescale_factor,
                                    postscale_factor, process_set)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                       name: Optional[str] = None, op: Optional[int] = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set
                       ) -> Tuple[torch.Tensor, ...]:
    """A grouped allreduce in place; the tuple of the tensors themselves."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                                postscale_factor, process_set))


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor],
                             average: Optional[bool] = None, name: Optional[str] = None,
                             op: Optional[int] = None, prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allreduce in place; the handle of all of them."""
    op = _reduction(op, average)
    tensors = _some(tensors)
    if not _problems and _submit.CAN_HOLD:
        native = _core.submit_tensors(ALLREDUCE, op, process_set.process_set_id, -1,
                                      prescale_factor, postscale_factor, name, tensors,
                                      tensors, None, True)
        if native is not NotImplemented:
            return _submit.replacing(native, tensors, [_submit.hold(t) for t in tensors],
                                     True)
    return _submit.in_place(ALLREDUCE, op, process_set, -1, prescale_factor,
                            postscale_factor, name, tensors, True)


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int,
                           process_set: ProcessSet = global_process_set
                           ) -> Callable[[], torch.Tensor]:
    """Starts the reduction of a sparse tensor; call the result to wait for it.

    Indices and values of all ranks are gathered, so the number of entries may differ; the
    result keeps duplicates.  Average divides by the number of ranks, every other op sums.
    """
    parts = tensor._indices().transpose(0, 1).contiguous(), tensor._values()
    size_ = tensor.shape
    count = process_set.size() or 1
    handles = [allgather_async(part, name=None if name is None else f"{name}.{word}",
                               process_set=process_set)
               for part, word in zip(parts, ("indices", "values"))]

    def wait() -> torch.Tensor:
        indices, values = [synchronize(h) for h in handles]
        if op == Average:
            values = values / count
        if indices.dim() == 0 or values.dim() == 0:
            return torch.zeros(size_, dtype=tensor.dtype, device=tensor.device,
                               layout=torch.sparse_coo)
        return torch.sparse_coo_tensor(indices.transpose(0, 1), values, size_,
                                       check_invariants=False)
    return wait


# -- allgather ----------------------------------------------------------------------


def _check_dims(op: int, name: Optional[str], process_set: ProcessSet,
                tensors: Sequence[torch.Tensor], grouped: bool = False) -> None:
    _submit.check(op, name, process_set, tensors, grouped)
    if any(t.dim() == 0 for t in tensors):
        _submit.refuse(op, name, process_set, f"{_submit.WORDS[op]} needs tensors of at "
                       f"least one dimension", len(tensors), grouped)


def _allgather_async(tensor: torch.Tensor, name: Optional[str],
                     process_set: ProcessSet) -> int:
    _check_dims(ALLGATHER, name, process_set, [tensor])
    return _submit.allocated(ALLGATHER, process_set, name, [tensor])


def _grouped_allgather_async(tensors: Sequence[torch.Tensor], name: Optional[str],
                             process_set: ProcessSet) -> int:
    tensors = _some(tensors)
    _check_dims(ALLGATHER, name, process_set, tensors, True)
    return _submit.allocated(ALLGATHER, process_set, name, tensors, grouped=True)


def _own_rows(grads: Sequence[torch.Tensor], rows: Sequence[int],
              process_set: ProcessSet) -> List[torch.Tensor]:
    """Of each reduced gradient the slice that belongs to this rank's rows."""
    dims = synchronize(_allgather_async(torch.tensor([list(rows)], dtype=torch.int64,
                                                     device="cpu"), None, process_set))
    before = dims[:process_set.rank()].sum(0).tolist()
    return [g.narrow(0, b, r) for g, b, r in zip(grads, before, rows)]


class HorovodAllgather(torch.autograd.Function):
    """An allgather that can be differentiated."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        handle = _allgather_async(tensor, name, process_set)
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        reduced = allreduce(grad, op=Average, process_set=ctx.process_set)
        return _own_rows([reduced], [ctx.rows], ctx.process_set)[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """A grouped allgather that can be differentiated, output by output."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet,
                *tensors: torch.Tensor) -> tuple:
        handle = _grouped_allgather_async(tensors, name, process_set)
        ctx.rows, ctx.process_set = [t.shape[0] for t in tensors], process_set
        return synchronize(handle)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        reduced = grouped_allreduce(list(grads), op=Average, process_set=ctx.process_set)
        return (None, None, *_own_rows(reduced, ctx.rows, ctx.process_set))


def allgather(tensor: torch.Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """The tensors of all ranks one after the other along the first dimension.

    The first dimension may differ between ranks, the others must agree.
    """
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and _wants_grad([tensor]):
        return HorovodAllgather.apply(tensor, name, process_set)
    if not _problems:
        output = _run_new(ALLGATHER, Sum, process_set.process_set_id, -1, 1.0, 1.0, name,
                          tensor, None)
        if output is not NotImplemented:
            return output
    return synchronize(_allgather_async(tensor, name, process_set))


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts an allgather; the handle for ``synchronize``."""
    return _allgather_async(tensor, name, process_set)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set
                      ) -> Tuple[torch.Tensor, ...]:
    """``allgather`` of several tensors as one operation."""
    tensors = _some(tensors)
    if _wants_grad(tensors):
        return HorovodGroupedAllgather.apply(name, process_set, *tensors)
    return synchronize(_grouped_allgather_async(tensors, name, process_set))


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> int:
    """Starts a grouped allgather; the handle of all of them."""
    return _grouped_allgather_async(tensors, name, process_set)


# -- broadcast ----------------------------------------------------------------------


def _broadcast_async(tensor: torch.Tensor, root_rank: int, name: Optional[str],
                     process_set: ProcessSet) -> int:
    _submit.check(BROADCAST, name, process_set, [tensor])
    return _submit.into_new(BROADCAST, Sum, process_set, root_rank, 1.0, 1.0, name,
                            [tensor])


class HorovodBroadcast(torch.autograd.Function):
    """A broadcast that can be differentiated: the root gets the mean of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: Optional[str],
                process_set: ProcessSet) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(_broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        reduced = allreduce(grad, op=Average, process_set=ctx.process_set)
        return reduced * float(rank() == ctx.root_rank), None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """A new tensor: that of ``root_rank``, which is a rank of the job, also for a set."""
    if isinstance(tensor, torch.Tensor) and _wants_grad([tensor]):
        return HorovodBroadcast.apply(tensor, root_rank, name, process_set)
    return synchronize(_broadcast_async(tensor, root_rank, name, process_set))


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast into a new tensor; the handle for ``synchronize``."""
    return _broadcast_async(tensor, root_rank, name, process_set)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """A broadcast in place; returns the tensor itself."""
    if not _problems and _run(BROADCAST, Sum, process_set.process_set_id, root_rank, 1.0,
                                  1.0, name, tensor, tensor) is None:
        return tensor
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> int:
    """Starts a broadcast in place; the handle for ``synchronize``."""
    return _submit.in_place(BROADCAST, Sum, process_set, root_rank, 1.0, 1.0, name,
                            [tensor])


# -- alltoall -----------------------------------------------------------------------


def _checked_splits(tensor: torch.Tensor, splits: Any, name: Optional[str],
                    process_set: ProcessSet) -> Optional[List[int]]:
    """The rows for each rank as a list; None when they are not given."""
    count, problem = process_set.size(), None
    if isinstance(splits, torch.Tensor) and splits.dtype not in (torch.int32, torch.int64):
        problem = f"splits must be int32 or int64, not {splits.dtype}"
    elif isinstance(splits, torch.Tensor) and splits.dim() > 1:
        problem = f"splits must have one dimension, not {splits.dim()}"
    rows = [] if problem or splits is None else \
        [int(s) for s in (splits.tolist() if isinstance(splits, torch.Tensor) and splits.dim()
                          else [splits] if isinstance(splits, torch.Tensor) else splits)]
    if problem is None and not rows:
        if tensor.shape[0] % (count or 1) == 0:
            return None
        problem = f"{tensor.shape[0]} rows cannot be split evenly over {count} ranks; " \
                  f"give splits"
    elif problem is None and len(rows) != count:
        problem = f"{len(rows)} splits for {count} ranks"
    elif problem is None and min(rows) < 0:
        problem = f"negative splits: {rows}"
    elif problem is None and sum(rows) > tensor.shape[0]:
        problem = f"the splits sum to {sum(rows)}, the tensor has {tensor.shape[0]} rows"
    if problem is not None:
        _submit.refuse(ALLTOALL, name, process_set, problem)
    return rows


def _alltoall_async(tensor: torch.Tensor, splits: Any, name: Optional[str],
                    process_set: ProcessSet) -> int:
    _check_dims(ALLTOALL, name, process_set, [tensor])
    rows = _checked_splits(tensor, splits, name, process_set)
    device = splits.device if isinstance(splits, torch.Tensor) else None
    return _submit.allocated(ALLTOALL, process_set, name, [tensor], rows,
                             received_on=device)


class HorovodAlltoall(torch.autograd.Function):
    """An alltoall that can be differentiated: gradients travel back the same way."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Optional[str],
                process_set: ProcessSet) -> tuple:
        handle = _alltoall_async(tensor, splits, name, process_set)
        output, received = synchronize(handle)
        ctx.rows, ctx.received, ctx.process_set = tensor.shape[0], received.cpu(), process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple:
        back, _ = alltoall(grad, splits=ctx.received, process_set=ctx.process_set)
        if back.shape[0] < ctx.rows:            # the last rows were not sent to anybody
            back = torch.cat([back, back.new_zeros(ctx.rows - back.shape[0],
                                                   *back.shape[1:])])
        return back, None, None, None


def alltoall(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set
             ) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Sends ``splits[k]`` rows to rank k, in order, and returns the rows received.

    Without splits the rows are divided evenly, and the result is the tensor alone;
    otherwise it is the pair (tensor, rows received from each rank).
    """
    if isinstance(tensor, torch.Tensor) and tensor.requires_grad and _wants_grad([tensor]):
        output, received = HorovodAlltoall.apply(tensor, splits, name, process_set)
    else:
        if not _problems:
            result = _run_new(ALLTOALL, Sum, process_set.process_set_id, -1, 1.0, 1.0, name,
                              tensor, splits)
            if result is not NotImplemented:
                return result
        output, received = synchronize(_alltoall_async(tensor, splits, name, process_set))
    return output if splits is None else (output, received)


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> int:
    """Starts an alltoall; ``synchronize`` gives the pair (tensor, rows received)."""
    return _alltoall_async(tensor, splits, name, process_set)


# -- reducescatter ------------------------------------------------------------------


def _share(tensor: torch.Tensor, process_set: ProcessSet) -> List[int]:
    """The shape of this rank's part."""
    rows, longer = divmod(tensor.shape[0], process_set.size() or 1)
    return [rows + ((process_set.rank() or 0) < longer), *tensor.shape[1:]]


def _check_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str], op: int,
                         process_set: ProcessSet, grouped: bool = False) -> None:
    _check_dims(REDUCESCATTER, name, process_set, tensors, grouped)
    if op not in (Sum, Average):
        _submit.refuse(REDUCESCATTER, name, process_set, "reducescatter knows Sum and "
                       "Average only", len(tensors), grouped, HorovodInternalError)


def _reducescatter(tensor: torch.Tensor, name: Optional[str], op: int,
                   process_set: ProcessSet, prescale: float,
                   postscale: float) -> torch.Tensor:
    """A new tensor, outside autograd."""
    if not _problems and op in (Sum, Average):
        output = _run_new(REDUCESCATTER, op, process_set.process_set_id, -1, prescale,
                          postscale, name, tensor, None)
        if output is not NotImplemented:
            return output
    return synchronize(reducescatter_async(tensor, name, op, process_set, prescale,
                                           postscale))


class HorovodReducescatter(torch.autograd.Function):
    """A reducescatter that can be differentiated: its gradient is an allgather."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], op: int,
                process_set: ProcessSet, prescale_factor: float,
                postscale_factor: float) -> torch.Tensor:
        ctx.factor = _scatter_factor(op, process_set, prescale_factor, postscale_factor)
        ctx.process_set = process_set
        return _reducescatter(tensor, name, op, process_set, prescale_factor,
                              postscale_factor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        gathered = allgather(grad.contiguous(), process_set=ctx.process_set)
        return gathered * ctx.factor, None, None, None, None, None


def _scatter_factor(op: int, process_set: ProcessSet, prescale: float,
                    postscale: float) -> float:
    return (1.0 if op == Average else float(process_set.size() or 1)) * prescale * postscale


class HorovodGroupedReducescatter(torch.autograd.Function):
    """A grouped reducescatter that can be differentiated, output by output."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], op: int, process_set: ProcessSet,
                prescale_factor: float, postscale_factor: float,
                *tensors: torch.Tensor) -> tuple:
        ctx.factor = _scatter_factor(op, process_set, prescale_factor, postscale_factor)
        ctx.process_set = process_set
        return synchronize(grouped_reducescatter_async(tensors, name, op, process_set,
                                                       prescale_factor, postscale_factor))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        gathered = grouped_allgather([g.contiguous() for g in grads],
                                     process_set=ctx.process_set)
        return (None, None, None, None, None, *[g * ctx.factor for g in gathered])


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None,
                  compression: Any = Compression.none, op: int = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's part of an allreduce, cut along the first dimension.

    Of d rows over N ranks the first d % N ranks get one more than the others.
    """
    compressed, ctx = compression.compress(tensor)
    if isinstance(compressed, torch.Tensor) and compressed.requires_grad and \
            _wants_grad([compressed]):
        output = HorovodReducescatter.apply(compressed, name, op, process_set,
                                            prescale_factor, postscale_factor)
    else:
        output = _reducescatter(compressed, name, op, process_set, prescale_factor,
                                postscale_factor)
    return compression.decompress(output, ctx)


def reducescatter_async(tensor: torch.Tensor, name: Optional[str] = None, op: int = Average,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    """Starts a reducescatter; the handle for ``synchronize``."""
    _check_reducescatter([tensor], name, op, process_set)
    return _submit.into_new(REDUCESCATTER, op, process_set, -1, prescale_factor,
                            postscale_factor, name, [tensor],
                            [_share(tensor, process_set)])


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                          compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """``reducescatter`` of several tensors as one operation; a list of new tensors."""
    compressed, contexts = zip(*[compression.compress(t) for t in _some(tensors)])
    if _wants_grad(compressed):
        outputs = HorovodGroupedReducescatter.apply(name, op, process_set, prescale_factor,
                                                    postscale_factor, *compressed)
    else:
        outputs = synchronize(grouped_reducescatter_async(
            compressed, name, op, process_set, prescale_factor, postscale_factor))
    return [compression.decompress(o, ctx) for o, ctx in zip(outputs, contexts)]


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                                op: int = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    """Starts a grouped reducescatter; the handle of all of them."""
    tensors = _some(tensors)
    _check_reducescatter(tensors, name, op, process_set, True)
    return _submit.into_new(REDUCESCATTER, op, process_set, -1, prescale_factor,
                            postscale_factor, name, tensors,
                            [_share(t, process_set) for t in tensors], True)


# -- join and barrier ---------------------------------------------------------------


def _run_alone(op: int, process_set: ProcessSet) -> int:
    """An operation without tensors; its value."""
    native = _core.submit(op, Sum, process_set.process_set_id, -1, 1.0, 1.0,
                          [(None, 0, 0, 0, (), None)], None)
    try:
        _core.wait(native)
        return _core.value(native) if op == JOIN else 0
    except KeyboardInterrupt:
        _core.orphan(native, None)
        native = 0
        raise
    finally:
        if native:
            _core.release(native)


def join(device: int = -1, process_set: ProcessSet = global_process_set) -> int:
    """Tells that this rank has no more data, and waits until all ranks have told so.

    Meanwhile it takes part in the allreduces of the others with neutral elements (zeros for
    sums and averages), on the device that theirs are on.  The rank that joined last is
    returned, on all ranks.  ``device`` is accepted for scripts that pass it.
    """
    return _run_alone(JOIN, process_set)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every member of the set has called it."""
    _run_alone(BARRIER, process_set)
