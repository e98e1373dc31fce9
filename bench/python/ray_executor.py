#!/usr/bin/env python3
"""RayExecutor: start, first allreduce and end on a warm Ray, beside bare Ray actors.

    bench/python/ray_executor.py [--workers 4] [--rounds 5] [--json out.json]

Each round starts as many actors that do nothing (what Ray itself costs), then an executor, runs
a function with hvd.init() and an allreduce of 4 KiB, runs it again, and shuts down.  Shown are
floor and median over the rounds.  Exit code 1: a sum was wrong.
"""
import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time

import numpy as np
import ray

from horovod.ray import RayExecutor


@ray.remote
class Bare:
    def nothing(self):
        return None


def first():
    """(seconds of init, of the first allreduce, whether the sum is right)"""
    import horovod.numpy as hvd
    begin = time.perf_counter()
    hvd.init()
    ready = time.perf_counter()
    total = hvd.allreduce(np.full(1024, hvd.rank(), np.float32), op=hvd.Sum)
    return (ready - begin, time.perf_counter() - ready,
            bool((total == hvd.size() * (hvd.size() - 1) // 2).all()))


def timed(call, *args, **kwargs):
    begin = time.perf_counter()
    result = call(*args, **kwargs)
    return time.perf_counter() - begin, result


def start_bare(count):
    actors = [Bare.remote() for _ in range(count)]
    ray.get([actor.nothing.remote() for actor in actors])
    return actors


def settle(count):
    """Until Ray has its CPUs back."""
    while ray.available_resources().get("CPU", 0) < count:
        time.sleep(0.05)


def one_round(count):
    row = {}
    row["bare actors"], actors = timed(start_bare, count)
    for actor in actors:
        ray.kill(actor)
    settle(count)
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=count)
    row["start"], _ = timed(executor.start)
    row["run to first allreduce"], answers = timed(executor.run, first)
    row["  hvd.init"] = max(a[0] for a in answers)
    row["  allreduce"] = max(a[1] for a in answers)
    row["second run"], more = timed(executor.run, first)
    row["shutdown"], _ = timed(executor.shutdown)
    settle(count)
    return row, all(a[2] for a in answers + more)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="hvb")
    ray.init(address="local", num_cpus=options.workers, include_dashboard=False,
             object_store_memory=100 << 20, _temp_dir=folder, log_to_driver=False)
    try:
        rounds = [one_round(options.workers) for _ in range(options.rounds)]
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{options.workers} workers, {options.rounds} rounds        floor ms  median ms")
    for name in rounds[0][0]:
        times = [row[name] * 1e3 for row, _ in rounds]
        print(f"{name:30s} {min(times):10.1f} {statistics.median(times):10.1f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([row for row, _ in rounds], file)
    sys.exit(not all(good for _, good in rounds))


if __name__ == "__main__":
    main()
