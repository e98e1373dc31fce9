"""horovod.run: results, failures, notebooks, threads."""
import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import horovod
from hvdrun import MARK, assert_gone, environment, living, wait_until


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    env = environment()
    for name in [n for n in os.environ if n.startswith("HOROVOD_")]:
        monkeypatch.delenv(name)
    for name in (MARK, "OMP_NUM_THREADS", "PATH", "HOROVOD_RECORDER_DIR"):
        monkeypatch.setenv(name, env[name])
    yield env[MARK]
    left = [pid for pid in living(env[MARK]) if pid != os.getpid()]
    assert not left


def rank_of_environment(base=0, factor=1):
    return base + factor * int(os.environ["HOROVOD_RANK"]), os.environ["HOROVOD_SIZE"]


def test_results_by_rank():
    assert horovod.run(rank_of_environment, args=(100,), kwargs={"factor": 10}, num_proc=3) == \
        [(100, "3"), (110, "3"), (120, "3")]


def test_closures_and_none():
    base = {"x": 5}
    assert horovod.run(lambda: base, num_proc=1) == [base]
    assert horovod.run(lambda: None, num_proc=2) == [None, None]


def test_large_function_and_result():
    data = os.urandom(3 << 20)
    first, second = horovod.run(lambda: data[::-1], num_proc=2)
    assert first == second == data[::-1]


def test_no_variable_is_set_by_accident():
    names = horovod.run(lambda: sorted(os.environ), num_proc=1)[0]
    assert "HOROVOD_CYCLE_TIME" not in names and "HOROVOD_CACHE_CAPACITY" not in names
    assert "HOROVOD_RUN_FUNC_FD" not in names and "HOROVOD_RUN_RESULT_FD" not in names


def fail_on_one():
    if os.environ["HOROVOD_RANK"] == "1":
        raise KeyError("reason 4711")
    time.sleep(60)


def test_the_exception_carries_rank_and_traceback():
    with pytest.raises(RuntimeError) as error:
        horovod.run(fail_on_one, num_proc=2)
    text = str(error.value)
    assert text.startswith("Horovod detected that one or more processes exited with non-zero")
    assert "Process name: 1\nExit code: 1\n" in text and "Rank 1 raised:\n" in text
    assert "KeyError: 'reason 4711'" in text and "fail_on_one" in text
    assert "run_task" not in text
    assert error.value.rank == 1


def fail_among_others():
    import numpy as np

    import horovod.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("reason 4711")
    hvd.allreduce(np.ones(1), name="never")


def test_the_cause_is_told_and_not_its_echo():
    with pytest.raises(RuntimeError) as error:
        horovod.run(fail_among_others, num_proc=3)
    assert error.value.rank == 1 and "KeyError: 'reason 4711'" in str(error.value)


def leave_among_others(how):
    import numpy as np

    import horovod.numpy as hvd
    os.environ["HOROVOD_FAULT"] = "job.leave rank=1 delay=700"     # the others end before it
    hvd.init()
    hvd.allreduce(np.ones(1), name="first")
    if hvd.rank() == 1:
        how()
    hvd.allreduce(np.ones(1), name="never")


@pytest.mark.parametrize("how, code", [
    (lambda: sys.exit(3), 3), (lambda: os.kill(os.getpid(), signal.SIGKILL), 137)])
def test_who_ends_without_a_word_is_told_and_not_its_echo(how, code):
    with pytest.raises(RuntimeError, match=f"Process name: 1\nExit code: {code}\n"):
        horovod.run(leave_among_others, (how,), num_proc=3)


def test_a_worker_that_dies_is_named():
    with pytest.raises(RuntimeError, match="Process name: 0\nExit code: 137"):
        horovod.run(lambda: os.kill(os.getpid(), signal.SIGKILL), num_proc=1)


def test_a_result_that_cannot_be_pickled_is_an_error():
    with pytest.raises(RuntimeError, match="(?i)pickle"):
        horovod.run(lambda: threading.Lock(), num_proc=1)


def test_errors_before_the_start():
    with pytest.raises(ValueError):
        horovod.run(print, hosts="a:1", hostfile="x")
    with pytest.raises(ValueError):
        horovod.run(print, use_gloo=True, use_mpi=True)
    with pytest.raises(RuntimeError, match=r"Requested more processes \(2\)"):
        horovod.run(print, num_proc=2, hosts="localhost:1")


def test_deprecated_names_warn_and_count():
    with pytest.warns(DeprecationWarning):
        assert len(horovod.run(lambda: 1, np=2)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        horovod.run(lambda: 1, num_proc=1)
    with pytest.warns(DeprecationWarning):
        assert horovod.run(lambda: os.environ["HOROVOD_GLOO_IFACE"],
                           network_interface="lo") == ["lo"]


def test_output_goes_to_the_callers_streams():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        horovod.run(lambda: (print("hi"), print("ä", file=sys.stderr)), num_proc=2)
    assert sorted(out.getvalue().splitlines()) == ["[0]<stdout>:hi", "[1]<stdout>:hi"]
    assert "[0]<stderr>:ä" in err.getvalue()


def test_works_in_a_thread_and_changes_no_handler():
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    results = []
    thread = threading.Thread(target=lambda: results.append(horovod.run(lambda: 7, num_proc=1)))
    thread.start()
    thread.join(60)
    assert results == [[7]]
    horovod.run(lambda: 7, num_proc=1)
    assert before == [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_two_runs_at_once():
    results = {}

    def call(i):
        results[i] = horovod.run(lambda: i, num_proc=2)
    threads = [threading.Thread(target=call, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {i: [i, i] for i in range(3)}


CALLER = "import horovod, time; horovod.run(lambda: time.sleep(300), num_proc=2)"


def start_caller():
    env = environment()
    process = subprocess.Popen([sys.executable, "-c", CALLER], env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until(lambda: len(living(env[MARK])) >= 5)
    return process, env[MARK]


def test_ctrl_c_ends_the_job():
    process, mark = start_caller()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in err and process.returncode != 0
    assert_gone(mark)


def test_a_caller_that_dies_leaves_nothing():
    process, mark = start_caller()
    process.kill()
    process.communicate()
    assert_gone(mark, 8)


def test_with_mpirun():
    def rank_and_size():
        return int(os.environ["OMPI_COMM_WORLD_RANK"]), int(os.environ["OMPI_COMM_WORLD_SIZE"])
    assert horovod.run(rank_and_size, num_proc=2, use_mpi=True) == [(0, 2), (1, 2)]
    with pytest.raises(RuntimeError, match="^mpirun failed with exit code 1$"):
        horovod.run(fail_on_one, num_proc=1, use_mpi=True)


def ranks():
    from horovod import _core
    _core.init(None, False)
    found = _core.rank(), _core.size(), _core.local_size()
    _core.shutdown()
    return found


def test_collectives_in_a_function():
    assert horovod.run(ranks, num_proc=2) == [(0, 2, 2), (1, 2, 2)]


def test_an_elastic_function():
    assert horovod.run(ranks, num_proc=2, min_num_proc=2, max_num_proc=2) == [(0, 2, 2), (1, 2, 2)]
    with pytest.raises(RuntimeError, match="exited with non-zero status"):
        horovod.run(lambda: 1 / 0, num_proc=2, min_num_proc=2)
