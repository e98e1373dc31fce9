"""Functions that run in the training processes of the tests."""
import json
import os
import signal
import subprocess
import sys
import time


def who(greeting="hello", mark="."):
    import horovod.numpy as hvd
    import numpy
    hvd.init()
    print(f"{greeting} from {hvd.rank()}{mark}")
    print(f"a word of {hvd.rank()}", file=sys.stderr)
    total = hvd.allreduce(numpy.array([hvd.rank() + 1.0]), op=hvd.Sum)[0]
    time.sleep(0.2 * (1 - hvd.rank()))
    return hvd.rank(), hvd.size(), hvd.local_rank(), float(total)


def variables(*names):
    return [os.environ.get(name) for name in names]


def all_names():
    return sorted(os.environ)


def fail(how, folder=None):
    """Rank 1 fails; rank 0 waits for it in a collective, or, without, for ever."""
    import horovod.numpy as hvd
    hvd.init()
    if folder is not None:
        with open(os.path.join(folder, f"{hvd.rank()}"), "w") as file:
            file.write(str(os.getpid()))
    if hvd.rank() == 1:
        if how == "raise":
            raise ValueError("no such table: customers")
        if how == "exit":
            sys.exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "sleepless":
            raise ValueError("while the other sleeps")
    if how == "sleepless":
        time.sleep(600)
    hvd.barrier()


def before_init():
    import horovod.numpy as hvd
    if os.environ["HOROVOD_RANK"] == "1":
        raise ValueError("before init")
    hvd.init()


def wait_for_ever(folder):
    import horovod.numpy as hvd
    hvd.init()
    with open(os.path.join(folder, f"{hvd.rank()}"), "w") as file:
        file.write(str(os.getpid()))
    time.sleep(600)


def large(count, data=b""):
    return bytes([int(os.environ["HOROVOD_RANK"])]) * count, len(data)


SCRIPT = """
import horovod.numpy as hvd, numpy
hvd.init()
print(int(hvd.allreduce(numpy.array([hvd.rank() + 1.0]), op=hvd.Sum)[0]))
"""


def below_a_shell():
    """The one that joins the job is a grandchild, which has no descriptor of ours."""
    return subprocess.run(["sh", "-c", f"{sys.executable} - ; exit $?"], input=SCRIPT, text=True,
                          stdout=subprocess.PIPE, check=True).stdout.strip()


def _note(path, **event):
    with open(path, "a") as file:
        file.write(json.dumps({"pid": os.getpid(), **event}) + "\n")


def _accident(path, how):
    """Once per journal, on rank 1 at step 5."""
    with open(path) as file:
        if '"accident"' in file.read():
            return
    _note(path, what="accident")
    if how == "exit":
        os._exit(7)
    import spark_support
    spark_support.kill(spark_support.executor_of(os.getpid()))
    time.sleep(600)


def train_elastic(path, steps, how):
    """Steps that are counted in a journal.  A worker that is alone waits at each step until
    it has company: the newcomer decides how long that takes, not a clock."""
    import horovod.torch as hvd
    import torch
    hvd.init()

    @hvd.elastic.run
    def train(state):
        _note(path, what="enter", rank=hvd.rank(), size=hvd.size())
        while state.step < steps:
            if state.step == 5 and hvd.rank() == 1:
                _accident(path, how)
            hvd.allreduce(torch.ones(1))
            if hvd.size() == 1 and state.step == steps - 2:
                time.sleep(0.05)        # the last two steps are for two
                state.commit()
                continue
            _note(path, what="step", rank=hvd.rank(), step=state.step)
            state.step += 1
            state.commit()

    state = hvd.elastic.TorchState(step=0)
    train(state)
    return hvd.rank(), hvd.size(), state.step
