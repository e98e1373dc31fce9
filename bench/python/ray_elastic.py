"""Elastic jobs on Ray: how long a loss and a new node take.

    python bench/python/ray_elastic.py [--kills 20] [--nodes 3]

Kill: from SIGKILL of a worker to the end of the survivors' next step.  Node: from the moment when
Ray has the node to the end of the first step of a worker on it, split into Ray's part (the
placement group, the process, until the actor answers) and ours (imports, joining at a commit, the
step).  Steps are small allreduces; three workers on one machine, one more with each node.
"""
import argparse
import json
import os
import pathlib
import pickle
import signal
import statistics
import tempfile
import threading
import time

import numpy as np
import ray
from ray.cluster_utils import Cluster

from horovod.ray import RayExecutor, _elastic_job

STEP_S = 0.005


def training(path, stop):
    import horovod.numpy as hvd
    from horovod.common.delegates import _basics
    from horovod.common.elastic import ObjectState, run_fn

    hvd.init()
    file = open(path, "a", buffering=1)

    def broadcast(value, root_rank=0):
        data = np.frombuffer(pickle.dumps(value), np.uint8)
        length = int(hvd.broadcast(np.array([len(data)]), root_rank, name="length")[0])
        data = data.copy() if hvd.rank() == root_rank else np.zeros(length, np.uint8)
        return pickle.loads(hvd.broadcast(data, root_rank, name="object").tobytes())

    def loop(state):
        while not hvd.allreduce(np.full(1, float(os.path.exists(stop))), name="step")[0]:
            file.write(json.dumps([time.time(), hvd.rank(), hvd.size(), os.getpid()]) + "\n")
            time.sleep(STEP_S)
            state.step += 1
            state.commit()

    run_fn(loop, _basics._reset)(ObjectState(broadcast, hvd.rank, step=0))
    return hvd.rank()


class Steps:
    """Every step of every worker: time, rank, size, pid."""

    def __init__(self, path):
        self.path = path
        pathlib.Path(path).touch()
        self._file = open(path)
        self._seen = []

    def first(self, condition, limit=60.0):
        """The first one of which this is true; looks at each only once, so that it takes no CPU
        from what it measures."""
        end, at = time.monotonic() + limit, 0
        while True:
            lines = self._file.read()
            cut = lines.rfind("\n") + 1
            self._file.seek(self._file.tell() - len(lines) + cut)
            self._seen += map(json.loads, lines[:cut].splitlines())
            for step in self._seen[at:]:
                if condition(*step):
                    return step
            at = len(self._seen)
            assert time.monotonic() < end, "it never came"
            time.sleep(0.05)


def report(what, values):
    values = sorted(values)
    print(f"{what}: median {statistics.median(values):.3f} s, "
          f"min {values[0]:.3f}, max {values[-1]:.3f}, n {len(values)}", flush=True)


def measure_kills(steps, size, count):
    times = []
    for _ in range(count):
        begin = time.time()
        now = steps.first(lambda t, rank, n, pid: t > begin and n == size and rank == size - 1)
        kill = time.time()
        os.kill(now[3], signal.SIGKILL)
        times.append(steps.first(lambda t, rank, n, pid: t > kill and n == size - 1)[0] - kill)
    return times


def measure_nodes(cluster, steps, size, count, came):
    rays, ours, adding = [], [], []
    for n in range(count):
        begin = time.time()
        before = len(came)
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        added = time.time()
        first = steps.first(lambda t, rank, k, pid: t > begin and k == size + n + 1)
        answered = came[before]
        pid = answered[1]
        first = steps.first(lambda t, rank, k, p: p == pid)
        adding.append(added - begin)
        rays.append(answered[0] - added)
        ours.append(first[0] - answered[0])
    return adding, rays, ours


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    cluster = Cluster()
    cluster.add_node(num_cpus=3, object_store_memory=80 << 20, include_dashboard=False)
    ray.init(address=cluster.address, log_to_driver=False)
    came = []
    real = _elastic_job.ElasticJob._came

    def noted(job, worker, facts):
        came.append((time.time(), facts["pid"]))
        real(job, worker, facts)
    _elastic_job.ElasticJob._came = noted
    settings = RayExecutor.create_settings()
    settings.restarts_per_slot = 1000
    executor = RayExecutor(settings, min_workers=2, max_workers=3 + arguments.nodes)
    executor.start()
    steps = Steps(str(folder / "steps"))
    thread = threading.Thread(target=executor.run, args=[training], daemon=True,
                              kwargs=dict(args=[steps.path, str(folder / "stop")]))
    thread.start()
    steps.first(lambda t, rank, n, pid: n == 3)
    report("kill to the next step", measure_kills(steps, 3, arguments.kills))
    steps.first(lambda t, rank, n, pid, begin=time.time(): t > begin and n == 3)
    adding, rays, ours = measure_nodes(cluster, steps, 3, arguments.nodes, came)
    report("a node starts (Cluster.add_node)", adding)
    report("node there to its actor answering (Ray)", rays)
    report("actor answering to its first step (ours)", ours)
    (folder / "stop").touch()
    thread.join(60)
    executor.shutdown()
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main()
