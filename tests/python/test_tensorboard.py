"""horovod.tensorboard: rates between two hvd.stats() become scalars."""
import sys

import pytest
from horovod.tensorboard import StatsWriter


class Writer:
    def __init__(self):
        self.rows = []

    def add_scalar(self, tag, value, step):
        self.rows.append((tag, value, step))


def stats(count, slept):
    return {"operations": {"allreduce": {"count": count, "bytes": 100 * count},
                           "broadcast": {"count": 0, "bytes": 0}},
            "peers": {"1": {"wait_seconds": slept}, "2": {"wait_seconds": 0.5}}}


def test_rates_since_the_last_time():
    writer, now, sets = Writer(), [0.0], [stats(10, 1.0), stats(30, 3.0)]
    stats_writer = StatsWriter(writer, 5.0, stats=lambda: sets.pop(0), clock=lambda: now[0])
    assert not stats_writer.write(0)
    now[0] = 4.0
    assert not stats_writer.write(1)    # too early
    now[0] = 10.0
    assert stats_writer.write(2)
    assert dict((tag, value) for tag, value, _ in writer.rows) == {
        "horovod/allreduce/operations_per_second": 2.0,
        "horovod/allreduce/bytes_per_second": 200.0,
        "horovod/waiting": pytest.approx(0.2), "horovod/slept_for_rank": 1}
    assert {step for _, _, step in writer.rows} == {2}


def test_with_the_real_statistics():
    import subprocess
    code = """
import numpy as np, horovod.numpy as hvd
from horovod.tensorboard import StatsWriter
class W:
    def add_scalar(self, tag, value, step): print(tag, value > 0)
hvd.init()
w = StatsWriter(W(), 0.0)
w.write(0)
hvd.allreduce(np.ones(4), name="x")
w.write(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "horovod/allreduce/operations_per_second True" in done.stdout, done
