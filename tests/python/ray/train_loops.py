"""Loops that workers of Ray Train run in test_train.py; they import this module by name."""
import json
import os
import pathlib
import signal
import tempfile
import time

import numpy as np
from ray import train

import horovod.numpy as hvd
from horovod.ray._train_backend import HorovodBackend, WorkersUnavailable
from horovod.ray.train import HorovodConfig


def note(config, name, **facts):
    """Leaves facts for the test, whatever happens to this process afterwards."""
    path = pathlib.Path(config["notes"]) / f"{name}.{os.getpid()}"
    part = path.with_name(f"part.{os.getpid()}")
    part.write_text(json.dumps(dict(facts, pid=os.getpid(), time=time.time())))
    part.rename(path)


def report(step, **metrics):
    with tempfile.TemporaryDirectory() as directory:
        if hvd.rank() == 0:
            pathlib.Path(directory, "step").write_text(str(step))
        checkpoint = train.Checkpoint.from_directory(directory)
        train.report(dict(metrics, step=step), checkpoint=checkpoint)


def first_step():
    checkpoint = train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        return int(pathlib.Path(directory, "step").read_text()) + 1


def whole(config):
    """Everything a run that goes well has."""
    hvd.init()
    context = train.get_context()
    assert (context.get_world_rank(), context.get_world_size()) == (hvd.rank(), hvd.size())
    assert (context.get_local_rank(), hvd.cross_size()) == (hvd.local_rank(), 1)
    for step in range(first_step(), 2):
        rows = np.zeros(2)
        for batch in train.get_dataset_shard("train").iter_batches(batch_size=8):
            rows += [len(batch["x"]), batch["x"].sum()]
        total = hvd.allreduce(rows, op=hvd.Sum, name="rows")
        report(step, rows=float(total[0]), sum=float(total[1]), size=hvd.size())
    environment = pathlib.Path("/proc/self/environ").read_bytes() + \
        pathlib.Path("/proc/self/cmdline").read_bytes()
    return {"cycle": os.environ["HOROVOD_CYCLE_TIME"], "rank": os.environ.get("HOROVOD_RANK"),
            "shown": [text for text in config["backwards"] if text[::-1].encode() in
                      environment or text[::-1] in repr(dict(os.environ))]}


def failing(config):
    """Rank 1 fails: in the first attempt when rank 0 waits for it in hvd.init(), in the second
    when it waits in a collective."""
    if os.environ["HOROVOD_GENERATION"] == "1":
        _fail_before_init(config)
    hvd.init()
    if hvd.rank() == 1:
        raise ValueError(f"rank 1 fails on purpose, devices "
                         f"{os.environ['CUDA_VISIBLE_DEVICES']}")
    hvd.allreduce(np.ones(1), name="nobody else comes")


def _fail_before_init(config):
    if train.get_context().get_world_rank() == 1:
        while not list(pathlib.Path(config["notes"]).glob("waits.*")):
            time.sleep(0.05)
        raise ValueError("rank 1 has no data")
    note(config, "waits")
    try:
        hvd.init()
    except BaseException as error:
        note(config, "told", why=f"{type(error).__name__}: {error}")
        raise


class HesitantBackend(HorovodBackend):
    """Its first attempt finds a worker that does not answer."""

    def _form(self, group, config):
        if self._generation == 1:
            raise WorkersUnavailable("rank 1 does not answer, on purpose")
        super()._form(group, config)


class HesitantConfig(HorovodConfig):
    backend_cls = HesitantBackend


def killed(config):
    """Rank 1 is killed while rank 0 waits for it, in the first attempt."""
    hvd.init()
    first = first_step()
    if first > 0:
        hvd.allreduce(np.ones(1), name="again")
        note(config, "resumed", rank=hvd.rank(), step=first, size=hvd.size(),
             generation=os.environ["HOROVOD_GENERATION"])
    else:
        note(config, "started")
    for step in range(first, 6):
        if step == 4 and first == 0 and hvd.rank() == 1:
            time.sleep(0.5)                 # rank 0 is in the collective by then
            note(config, "killed", step=step, generation=os.environ["HOROVOD_GENERATION"])
            os.kill(os.getpid(), signal.SIGKILL)
        value = hvd.allreduce(np.full(1, float(step)), op=hvd.Sum, name="step")
        report(step, value=float(value[0]))


def endless(config):
    hvd.init()
    note(config, "running", rank=hvd.rank(),
         port=int(os.environ["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
         addr=os.environ["HOROVOD_GLOO_RENDEZVOUS_ADDR"])
    while True:
        hvd.allreduce(np.ones(1000), name="for ever")


def local(config):
    hvd.init()
    context = train.get_context()
    total = hvd.allreduce(np.ones(1), op=hvd.Sum)
    report(7, total=float(total[0]))
    return [context.get_world_size(), context.get_world_rank(), hvd.size(), hvd.rank()]


def nodes(config):
    """On as many nodes as there are, until the test says that it is the end."""
    hvd.init()
    step = first_step()
    ranks = hvd.allgather(np.full(1, hvd.rank()), name="ranks")
    note(config, f"attempt{os.environ['HOROVOD_GENERATION']}", rank=hvd.rank(),
         ranks=ranks.tolist(), local=[hvd.local_rank(), hvd.local_size()], first=step,
         cross=[hvd.cross_rank(), hvd.cross_size()], node=os.environ["HOROVOD_HOSTNAME"])
    is_last = False
    while not is_last:
        is_last = bool(hvd.allreduce(np.full(1, float(
            pathlib.Path(config["notes"], "end").exists())), op=hvd.Sum, name="end")[0])
        time.sleep(0.1)
        report(step, size=hvd.size())
        step += 1
