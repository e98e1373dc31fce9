"""python -m horovod.timeline: timelines of all ranks on one clock, and what they mean in words."""
import io
import json
import sys

import pytest
from hvdrun import run

from horovod import timeline

STEP_US, COUNT = 50_000, 90


def write(path, rank, late_us, clock_us, drift=0.0):
    """COUNT steps of two tensors; rank 1 comes late_us later to the first one than the others.
    The clock of the file is clock_us ahead, and goes drift faster."""
    begin = 1_700_000_000_000_000

    def local(us):
        return round(us * (1 + drift))
    events = [{"name": "process_name", "ph": "M", "pid": 0,
               "args": {"start_time_since_epoch_in_micros": begin + clock_us}},
              {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}]
    for pid, name in enumerate(("grad", "loss"), 1):
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
    for step in range(COUNT):
        for pid in (1, 2):
            start = step * STEP_US + (pid - 1) * (late_us + 1000)
            come = start + (late_us if rank == 1 and pid == 1 else 0)
            end = start + (late_us if pid == 1 else 0) + 500
            events += [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": local(come), "pid": pid},
                       {"ph": "E", "ts": local(end - 400), "pid": pid},
                       {"ph": "B", "name": "ALLREDUCE", "ts": local(end - 400), "pid": pid},
                       {"ph": "E", "ts": local(end), "pid": pid}]
    path.write_text(json.dumps(events))


@pytest.fixture
def files(tmp_path):
    def make(clock_us, drift=0.0):
        for rank in range(3):
            write(tmp_path / ("t.json" if rank == 0 else f"t.json.{rank}"), rank, 20_000,
                  clock_us if rank == 2 else 0, drift if rank == 2 else 0.0)
        return str(tmp_path / "t.json")
    return make


@pytest.mark.parametrize("clock_us, drift", [(0, 0), (7_000_000, 0), (-40_000, 1e-4)])
def test_ends_of_an_operation_meet_whatever_the_clocks_say(files, clock_us, drift):
    merged = timeline.merge(timeline.find([files(clock_us, drift)]))
    ends = {}
    for rank in range(3):
        ends[rank] = [e["ts"] for e in merged if e["ph"] == "E" and e["pid"] == rank]
    assert len(ends[0]) == len(ends[2]) == 4 * COUNT
    assert max(abs(a - b) for a, b in zip(ends[0], ends[2])) < 60
    names = {e["args"]["name"] for e in merged if e.get("name") == "thread_name"}
    assert names == {"grad", "loss"}


def test_the_summary_names_the_late_rank_and_the_tensor(files):
    out = io.StringIO()
    timeline.summary(timeline.find([files(7_000_000)]), out)
    text = out.getvalue()
    assert "timelines of 3 ranks" in text and f"{2 * COUNT} operations of 2 tensors" in text
    assert "the clock of rank 2 is 7000.0 ms ahead of that of rank 0: corrected" in text
    assert "a step takes 50.0 ms" in text
    assert "a rank waits 13.3 ms of it for others: 27%" in text
    assert "for rank 1: 100% of the waiting" in text and "by 20.0 ms a step" in text
    assert "in grad: 100% of the waiting, most often for rank 1" in text


def test_a_real_job(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("""
import time, numpy as np, horovod.numpy as hvd
hvd.init()
for i in range(20):
    if hvd.rank() == 1:
        time.sleep(0.02)
    hvd.allreduce(np.ones(10), name="grad")
hvd.shutdown()
""")
    done = run("-np", "2", sys.executable, str(script),
               env={"HOROVOD_TIMELINE": str(tmp_path / "t.json"),
                    "HOROVOD_TIMELINE_ALL_RANKS": "1"})
    assert done.code == 0, done
    out = io.StringIO()
    found = timeline.find([str(tmp_path / "t.json")])
    timeline.summary(found, out)
    assert len(found) == 2 and "for rank 1: " in out.getvalue(), out.getvalue()
    assert timeline.main(["merge", str(tmp_path / "t.json")]) == 0
    merged = json.loads((tmp_path / "t.merged.json").read_text())["traceEvents"]
    assert {e["pid"] for e in merged} == {0, 1}


def test_a_file_that_is_no_timeline_is_refused(tmp_path, capsys):
    (tmp_path / "t.json").write_text("[]")
    assert timeline.main(["summary", str(tmp_path / "t.json")]) == 1
    assert "not a timeline" in capsys.readouterr().err
    assert timeline.main(["summary", str(tmp_path / "none.json")]) == 1
