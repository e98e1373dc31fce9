"""What the strategies of the Trainer and of Fabric share: the job, devices, collectives."""
import contextlib
import warnings
from typing import Any, Dict, Iterator, List, Optional

import torch
from lightning_utilities.core.rank_zero import rank_zero_only

import horovod.torch as hvd
from horovod.common import basics
from horovod.common.advice import advised
from horovod.common.exceptions import HorovodInternalError
from horovod.lightning._gradients import Gradients

COMPRESSIONS = {"none": hvd.Compression.none, "fp16": hvd.Compression.fp16,
                "bf16": hvd.Compression.bf16}
OPERATIONS = {"average": hvd.Average, "adasum": hvd.Adasum}
REDUCTIONS = {"mean": hvd.Average, "avg": hvd.Average, "average": hvd.Average,
              "sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "product": hvd.Product,
              "prod": hvd.Product}


class _Job:
    """Whether the job is over because a rank failed.  The next one begins when the next
    Trainer starts: all ranks then leave the old job and join a new one."""
    broken = False

    def forget(self) -> None:
        self.broken = False


job = _Job()
basics._on_shutdown.add(job)


def join() -> None:
    """Joins the job, a new one if the last was given up."""
    if job.broken:
        hvd.shutdown()
    hvd.init()
    rank_zero_only.rank = hvd.rank()                        # type: ignore[attr-defined]


def give_up(why: str) -> None:
    """Ends the job for all ranks, so that nobody waits for this one."""
    job.broken = True
    hvd.abort(why)


# -- arguments ----------------------------------------------------------------------


def chosen(value: Any, table: Dict[str, Any], what: str) -> Any:
    """The value that goes by this name, or the value itself."""
    if isinstance(value, str):
        value = table.get(value.lower())
    if value is None or (isinstance(value, int) and value not in table.values()):
        raise ValueError(f"{what} must be one of {', '.join(table)}")
    return value


def reduction(reduce_op: Any) -> int:
    """Horovod's number for a name or for one of torch.distributed's ReduceOps."""
    if reduce_op is None:
        return hvd.Average
    name = str(getattr(reduce_op, "name", reduce_op)).rpartition(".")[2].lower()
    if name in REDUCTIONS:
        return REDUCTIONS[name]
    for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        if reduce_op == getattr(torch.distributed.ReduceOp, name):
            return REDUCTIONS[name.lower()]
    raise ValueError(f"reduce_op {reduce_op!r} is not known: use one of "
                     f"{', '.join(REDUCTIONS)}")


def members(group: Any) -> hvd.ProcessSet:
    """The process set that ``group`` means: None and torch's WORLD are all ranks."""
    if isinstance(group, hvd.ProcessSet):
        return group
    if group is None or group is torch.distributed.group.WORLD:
        return hvd.global_process_set
    raise ValueError(advised(
        f"group must be None or a horovod ProcessSet, not {group!r}: "
        "Horovod has no torch.distributed groups"))


# -- operations ---------------------------------------------------------------------


class _Gather(torch.autograd.Function):
    """Tensors of all ranks, stacked; the gradient is the sum of what all ranks want."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, process_set: hvd.ProcessSet) -> torch.Tensor:
        ctx.process_set = process_set
        return hvd.allgather(tensor.detach().unsqueeze(0), process_set=process_set)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:        # type: ignore[override]
        mine = hvd.reducescatter(grad.contiguous(), op=hvd.Sum, process_set=ctx.process_set)
        return mine.squeeze(0), None


def gather(tensor: torch.Tensor, process_set: hvd.ProcessSet,
           sync_grads: bool) -> torch.Tensor:
    if sync_grads and tensor.requires_grad and torch.is_grad_enabled():
        return _Gather.apply(tensor, process_set)
    return hvd.allgather(tensor.detach().unsqueeze(0), process_set=process_set)


def broadcast_module(module: torch.nn.Module) -> None:
    """Parameters and buffers of rank 0 for everybody."""
    tensors = [*module.named_parameters(), *module.named_buffers()]
    hvd.broadcast_parameters(
        [(name, t.detach()) for name, t in tensors
         if not isinstance(t, (torch.nn.UninitializedParameter,
                               torch.nn.UninitializedBuffer))], root_rank=0)


class Common:
    """Mixed in before Lightning's ParallelStrategy."""
    strategy_name = "horovod"
    environment_class: Any
    misconfiguration: Any
    _accelerator: Any                   # Lightning's
    _parallel_devices: Any

    def _begin(self, compression: Any, op: Any) -> None:
        join()
        self._num_nodes = 1
        self._gradients = Gradients(chosen(compression, COMPRESSIONS, "compression"),
                                    chosen(op, OPERATIONS, "op"))

    # -- ranks and devices --------------------------------------------------------

    @property
    def is_distributed(self) -> bool:
        return True

    @property
    def root_device(self) -> torch.device:
        return self.parallel_devices[hvd.local_rank()]

    @property
    def parallel_devices(self) -> List[torch.device]:
        """A device for each rank of this host; none before the accelerator is known."""
        if self._parallel_devices:
            return self._parallel_devices
        accelerator = self._accelerator
        if accelerator is None:
            return []
        kinds = [kind.__name__ for kind in type(accelerator).__mro__]
        if "CUDAAccelerator" in kinds:
            count = max(1, torch.cuda.device_count())
            return [torch.device("cuda", i % count) for i in range(hvd.local_size())]
        return [torch.device("mps" if "MPSAccelerator" in kinds else "cpu")
                ] * hvd.local_size()

    @parallel_devices.setter
    def parallel_devices(self, devices: Optional[List[torch.device]]) -> None:
        self._parallel_devices = devices

    @property
    def num_nodes(self) -> int:
        return self._num_nodes

    @num_nodes.setter
    def num_nodes(self, num_nodes: int) -> None:
        if num_nodes != 1:
            raise self.misconfiguration(
                f"num_nodes={num_nodes}: with Horovod the launcher knows the hosts; leave "
                "num_nodes away and use horovodrun -np N -H host1:slots,host2:slots")
        self._num_nodes = num_nodes

    @property
    def distributed_sampler_kwargs(self) -> Dict[str, Any]:
        return {"num_replicas": hvd.size(), "rank": hvd.rank()}

    def _use_device(self) -> None:
        if self.root_device.type == "cuda":
            torch.cuda.set_device(self.root_device)

    # -- gradients ----------------------------------------------------------------

    @contextlib.contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        """Within this context backward passes only accumulate."""
        with self._gradients.blocked():
            yield

    # -- collectives --------------------------------------------------------------

    def _is_alone(self) -> bool:
        """Whether the others cannot be reached any more: callbacks that save something
        after a failure are on their own."""
        return job.broken

    def barrier(self, name: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        """Returns also when those who have not come have left the job in order: scripts save
        a checkpoint on rank 0 alone, after the others have ended."""
        if self._is_alone():
            return
        try:
            hvd.barrier()
        except HorovodInternalError as error:
            if error.status != "SHUTDOWN" or error.rank in (-1, hvd.rank()):
                raise
            warnings.warn(f"barrier {name or ''}: {error} Going on without it: all ranks "
                          "should call what waits for all ranks", stacklevel=2)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if self._is_alone():
            return obj
        return hvd.broadcast_object(obj, src, "lightning.broadcast")

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """The reduction of the ranks' tensors as a new tensor; other objects as they are."""
        process_set, op = members(group), reduction(reduce_op)
        if not isinstance(tensor, torch.Tensor) or self._is_alone():
            return tensor
        return hvd.allreduce(tensor, op=op, process_set=process_set)

    def all_gather(self, tensor: torch.Tensor, group: Any = None,
                   sync_grads: bool = False) -> torch.Tensor:
        """The ranks' tensors, stacked along a new first dimension."""
        return gather(tensor, members(group), sync_grads)
