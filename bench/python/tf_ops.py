#!/usr/bin/env python3
"""One allreduce of TensorFlow, eager and in a tf.function, beside horovod.torch in the same
processes: what does TensorFlow add to an operation?

    horovodrun -np 2 python bench/python/tf_ops.py [--sizes 4,1024,...] [--secs 0.2] [--blocks 5]

Sizes are bytes of float32.  The three ways take turns, block by block; shown is the best block,
microseconds a call.  Every result is checked once.
"""
import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf  # noqa: E402
import torch  # noqa: E402

import horovod.tensorflow as hvd  # noqa: E402
import horovod.torch as hvd_torch  # noqa: E402

SIZES = ",".join(str(4 << 2 * k) for k in range(13))            # 4 B to 64 MiB


def calls(count, number):
    """By name: a call without arguments that gives its result."""
    ones, torch_ones = tf.ones(count), torch.ones(count)

    @tf.function
    def in_function(x):
        return hvd.allreduce(x, op=hvd.Sum, name=f"function.{number}")

    return {"torch": lambda: hvd_torch.allreduce(torch_ones, op=hvd_torch.Sum,
                                                 name=f"torch.{number}"),
            "eager": lambda: hvd.allreduce(ones, op=hvd.Sum, name=f"eager.{number}"),
            "function": lambda: in_function(ones)}


def seconds(call, repeats):
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def measure(count, number, secs, blocks):
    ways = calls(count, number)
    for name, call in ways.items():
        assert abs(float(call()[-1]) - hvd.size()) < 1e-6, f"{name}: a wrong sum"
    slowest = max(seconds(call, 10) for call in ways.values())
    # All ranks repeat equally often, as the slowest one says.
    slowest = float(hvd_torch.allreduce(torch.tensor([slowest]), op=hvd_torch.Max)[0])
    repeats = max(3, int(secs / blocks / slowest))
    times = {name: [] for name in ways}
    for _ in range(blocks):
        for name, call in ways.items():
            times[name].append(seconds(call, repeats))
    return {name: min(found) * 1e6 for name, found in times.items()}


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sizes", default=SIZES)
    p.add_argument("--secs", type=float, default=0.2, help="time per way and size")
    p.add_argument("--blocks", type=int, default=5)
    a = p.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    for number, size in enumerate(int(x) for x in a.sizes.split(",")):
        row = measure(size // 4, number, a.secs, a.blocks)
        if hvd.rank() == 0:
            print(f"{size:>10} B  " + "  ".join(f"{n} {us:9.1f} us" for n, us in row.items()),
                  flush=True)


if __name__ == "__main__":
    main()
