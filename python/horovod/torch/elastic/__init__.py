"""Elastic training with PyTorch.

    @hvd.elastic.run
    def train(state):
        for state.epoch in range(state.epoch, epochs):
            ...
            state.commit()

    state = hvd.elastic.TorchState(model, optimizer, epoch=0)
    train(state)
"""
from typing import Callable

from horovod.common.elastic import ObjectState, State, run_fn
from horovod.torch import mpi_ops
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState

__all__ = ["run", "init", "TorchState", "ElasticSampler", "State", "ObjectState"]

init = mpi_ops.init


def run(func: Callable) -> Callable:
    """Decorates a training function whose first argument is a State.

    The function is called after the state was synced from rank 0; after a failure the last
    commit is restored, after a change of hosts nothing is lost; then the job is formed
    again and the function is called from its beginning.
    """
    return run_fn(func, mpi_ops._basics._reset)
