"""A worker of the elastic tests: counts steps with the others, over numpy and ``_core`` only.

    elastic_worker.py JOURNAL STEPS [PAUSE]

It appends JSON lines to JOURNAL: ``enter`` when a generation begins for it, ``step`` by rank 0
after each step, ``done`` at the end.  What HVD_ELASTIC_DO says happens once in the whole job:
"kill 2 at 5" is a SIGKILL of the worker that began as rank 2, at step 5; also raise, exit0,
stop (SIGSTOP), term (SIGTERM to itself, taken as notice).  "kill 2 in sync" is one in that phase:
dial, meet (within the first init), submit (an operation is under way), commit, and, when another
worker has died before: reset (between shutdown and init), again (within init), sync; joins (a
replacement within its first init); shutdown."""
import json
import os
import signal
import sys
import threading
import time

import numpy as np

import horovod.numpy as hvd
from horovod import _core
from horovod.common.exceptions import HorovodInternalError, WorkerRetired

JOURNAL, STEPS = sys.argv[1], int(sys.argv[2])
PAUSE = float(sys.argv[3]) if len(sys.argv) > 3 else 0.01
START_RANK = int(os.environ["HOROVOD_RANK"])
state, commits = 0, 0


def write(what, **more):
    with open(JOURNAL, "a") as file:
        file.write(json.dumps(dict(
            what=what, pid=os.getpid(), host=os.environ["HOROVOD_HOSTNAME"], start=START_RANK,
            rank=_core.rank(), size=_core.size(), state=state, time=time.time(),
            generation=_core.elastic_info()["generation"], **more)) + "\n")


def plans(word):
    for plan in filter(None, os.environ.get("HVD_ELASTIC_DO", "").split(",")):
        action, rank, kind, when = plan.split()
        if kind == word and int(rank) == START_RANK:
            yield plan, action, when


def take(plan):
    """False: somebody has done it."""
    try:
        os.close(os.open(f"{JOURNAL}.{plan.replace(' ', '-')}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def phase(name, fault=None):
    """Killed here, or at a point within the library."""
    for plan, _, when in plans("in"):
        if when == name and take(plan):
            if fault is None:
                os.kill(os.getpid(), signal.SIGKILL)
            os.environ["HOROVOD_FAULT"] = f"{fault} kill"


def act():
    """What is planned for this worker at this step, unless somebody has done it."""
    for plan, action, step in plans("at"):
        if int(step) > state or not take(plan):
            continue
        if action == "raise":
            raise SystemExit(3)
        if action == "exit0":
            os._exit(0)
        if action == "term":
            _core.elastic_leave()
            continue
        os.kill(os.getpid(), signal.SIGSTOP if action == "stop" else signal.SIGKILL)


def step():
    global state, commits
    act()
    if "in submit" in os.environ.get("HVD_ELASTIC_DO", "") and state % 20 == 10:
        threading.Timer(0.002, phase, ["submit"]).start()
        hvd.allreduce(np.ones(1 << 23, dtype=np.float32), name="large")
    total = hvd.allreduce(np.ones(1000, dtype=np.float32), op=hvd.Sum, name="step")
    assert total[0] == hvd.size(), (total[0], hvd.size())
    state += 1
    commits += 1
    if state == 15:
        phase("commit")
    _core.elastic_committed(commits)
    if hvd.rank() == 0:
        write("step")
    kind = np.array([_core.elastic_pending()[1]], dtype=np.int32)
    if hvd.allreduce(kind, op=hvd.Max, name="kind")[0]:
        renew()
        return _core.elastic_info()["sync"]
    time.sleep(PAUSE)
    return None


def renew():
    hvd.shutdown()
    phase("reset")
    phase("again", "meet.send")
    hvd.init()


def sync():
    global state
    if state > 0:
        phase("sync")
    state = int(hvd.broadcast(np.array([state], dtype=np.int64), 0, name="sync")[0])
    write("enter")


def main():
    again = True
    phase("dial", "rendezvous.connect")
    phase("meet", "meet.send")
    if os.path.exists(f"{JOURNAL}.kill-{START_RANK}-at-9"):
        phase("joins", "meet.send")
    hvd.init()
    while state < STEPS:
        try:
            if again:
                sync()
            elif again is False:
                write("enter")
            again = step()
        except HorovodInternalError as e:
            if e.status == "ABORTED":
                raise
            renew()
            again = True
    phase("shutdown")
    write("done")


try:
    main()
except WorkerRetired:
    write("retired")
