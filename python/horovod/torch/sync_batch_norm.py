"""Batch normalisation over the batches of all ranks, on the CPU as well."""
from typing import Any, Optional

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from horovod.common.process_sets import ProcessSet, global_process_set
from horovod.torch.mpi_ops import Sum, _allreduce, is_initialized


class SyncBatchNorm(_BatchNorm):
    """As torch's BatchNorm, with mean and variance of the batches of all ranks.

    Ranks may have batches of different sizes.  ``process_set`` says over which ranks.
    ``momentum=None`` keeps a cumulative average.  Use ``SyncBatchNorm.convert(module)`` to
    replace all BatchNorm layers of a model.
    """

    def __init__(self, num_features: int, eps: float = 1e-5,
                 momentum: Optional[float] = 0.1, affine: bool = True,
                 track_running_stats: bool = True,
                 process_set: ProcessSet = global_process_set, **kwargs: Any) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **kwargs)
        self.process_set = process_set

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    def _alone(self) -> bool:
        return not is_initialized() or not self.process_set.included() or \
            self.process_set.size() == 1

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        by_batch = self.training or self.running_mean is None
        if not by_batch or self._alone():
            update = self.training and self.track_running_stats
            return torch.nn.functional.batch_norm(
                input, self.running_mean if update or not by_batch else None,
                self.running_var if update or not by_batch else None, self.weight,
                self.bias, by_batch, self._factor(), self.eps)
        output, mean, var, count = _SyncBatchNorm.apply(input, self.weight, self.bias,
                                                        self.eps, self.process_set)
        if self.training and self.track_running_stats:
            self._update(mean, var, count)
        return output

    def _factor(self) -> float:
        """The weight of this batch in the running statistics."""
        if self.momentum is not None:
            return self.momentum
        if self.num_batches_tracked is None:
            return 0.0
        return 1.0 / max(1, int(self.num_batches_tracked))

    def _update(self, mean: torch.Tensor, var: torch.Tensor, count: torch.Tensor) -> None:
        factor = self._factor()
        assert self.running_mean is not None and self.running_var is not None
        with torch.no_grad():
            unbiased = var * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    @classmethod
    def convert(cls, module: torch.nn.Module,
                process_set: ProcessSet = global_process_set) -> torch.nn.Module:
        """The module with every BatchNorm layer replaced, parameters and buffers kept."""
        result = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            result = cls(module.num_features, module.eps, module.momentum, module.affine,
                         module.track_running_stats, process_set)
            result.weight, result.bias = module.weight, module.bias
            result.running_mean = module.running_mean
            result.running_var = module.running_var
            result.num_batches_tracked = module.num_batches_tracked
            result.training = module.training
        for name, child in module.named_children():
            result.add_module(name, cls.convert(child, process_set))
        return result


class _SyncBatchNorm(torch.autograd.Function):
    """One exchange forward (sum, sum of squared deviations, count) and one backward.

    Accumulated in float64, so that the plain sums of squares do no harm.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: Optional[torch.Tensor],
                bias: Optional[torch.Tensor], eps: float, process_set: ProcessSet) -> tuple:
        channels = input.shape[1]
        dims = [d for d in range(input.dim()) if d != 1]
        x = input.double()
        local = torch.cat([x.sum(dims), (x * x).sum(dims),
                           x.new_tensor([input.numel() // max(1, channels)])])
        total = _allreduce(local, None, Sum, 1.0, 1.0, process_set)
        count = total[-1]
        mean = total[:channels] / count
        var = (total[channels:2 * channels] / count - mean * mean).clamp_(min=0)
        invstd = torch.rsqrt(var + eps)
        shape = [1, channels] + [1] * (input.dim() - 2)
        output = (x - mean.view(shape)) * invstd.view(shape)
        if weight is not None:
            output = output * weight.double().view(shape)
        if bias is not None:
            output = output + bias.double().view(shape)
        ctx.save_for_backward(input, weight, bias, mean, invstd, count)
        ctx.process_set = process_set
        ctx.mark_non_differentiable(mean, var, count)
        return output.to(input.dtype), mean, var, count

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> tuple:
        input, weight, bias, mean, invstd, count = ctx.saved_tensors
        channels = input.shape[1]
        dims = [d for d in range(input.dim()) if d != 1]
        shape = [1, channels] + [1] * (input.dim() - 2)
        dy = grad.double()
        centred = input.double() - mean.view(shape)
        sum_dy, sum_dy_xmu = dy.sum(dims), (dy * centred).sum(dims)
        grad_weight = (sum_dy_xmu * invstd).to(weight.dtype) if weight is not None else None
        grad_bias = sum_dy.to(bias.dtype) if bias is not None else None
        total = _allreduce(torch.cat([sum_dy, sum_dy_xmu]), None, Sum, 1.0, 1.0,
                           ctx.process_set) / count
        scale = invstd if weight is None else invstd * weight.double()
        dx = dy - total[:channels].view(shape) - \
            centred * (total[channels:] * invstd * invstd).view(shape)
        return (dx * scale.view(shape)).to(input.dtype), grad_weight, grad_bias, None, None
