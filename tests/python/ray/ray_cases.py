"""Functions that run on workers; they are pickled by reference, and import no framework."""
import os
import signal
import threading
import time

import numpy as np

import horovod.numpy as hvd


def place():
    hvd.init()
    return {"rank": hvd.rank(), "size": hvd.size(), "local_rank": hvd.local_rank(),
            "local_size": hvd.local_size(), "cross_rank": hvd.cross_rank(),
            "cross_size": hvd.cross_size(), "pid": os.getpid(),
            "sum": float(hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum)[0])}


def sum_of_ranks(factor=1, offset=0):
    hvd.init()
    total = hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum)
    return int(total[0]) * factor + offset


def zero_times_rank(value):
    hvd.init()
    return value * hvd.rank()


def wait_for(rank, what):
    """All ranks but one wait in a collective; that one does something else."""
    hvd.init()
    hvd.barrier()
    if hvd.rank() != rank:
        hvd.allreduce(np.zeros(4), name="never")
        return
    if what == "raise":
        raise ZeroDivisionError(f"division by zero on rank {rank}")
    if what == "exit":
        os._exit(3)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "sleep":
        time.sleep(3600)


def wait_until_freed():
    """All ranks wait, for different things."""
    hvd.init()
    hvd.barrier()
    hvd.allreduce(np.zeros(4), name=f"rank {hvd.rank()}")


def never_comes(rank, what):
    """One rank fails before init; the others wait in init."""
    if int(os.environ["HOROVOD_RANK"]) == rank:
        wait_alone(what)
    hvd.init()


def wait_alone(what):
    if what == "raise":
        raise ValueError("no init for me")
    os.kill(os.getpid(), signal.SIGKILL)


def threads():
    """Names of the threads of the core in this process."""
    import pathlib
    names = [p.read_text().strip() for p in pathlib.Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name.startswith("hvd")]


def variables(*names):
    return {name: os.environ.get(name) for name in names}


class Doubler:
    """An executable whose constructor meets the other ranks."""

    def __init__(self, factor, offset=0):
        hvd.init()
        self.value = hvd.rank() * factor + offset
        self.calls = 0

    def count(self):
        self.calls += 1
        return self.calls

    def sum(self):
        return float(hvd.allreduce(np.array([float(self.value)]), op=hvd.Sum)[0])


class Broken:
    def __init__(self):
        hvd.init()
        if hvd.rank() == 1:
            raise LookupError("no data for rank 1")
        hvd.barrier()


def log_some(count):
    from horovod.ray import ray_logger
    hvd.init()
    for i in range(count):
        ray_logger.log({"rank": hvd.rank(), "i": i})
    return hvd.rank()


def train_torch(steps=3):
    """A small training; the rank's place and a mark of its weights."""
    import torch

    import horovod.torch as thvd
    thvd.init()
    torch.manual_seed(thvd.rank())
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = thvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    thvd.broadcast_parameters(model.state_dict(), root_rank=0)
    thvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return thvd.local_rank(), [p.detach().tolist() for p in model.parameters()]


def abort_from_a_thread():
    """Blocked in a collective, ended by another thread of the same process."""
    from horovod.ray import _actor
    hvd.init()
    hvd.barrier()
    if hvd.rank() != 0:
        timer = threading.Timer(0.2, _actor.abort, ["enough of it"])
        timer.start()
    try:
        hvd.allreduce(np.zeros(2), name="rank 0 only" if hvd.rank() == 0 else "others")
    except hvd.HorovodInternalError as error:
        return str(error)
