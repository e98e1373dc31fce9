"""horovod.spark.run on local[2]."""
import io
import os
import re
import threading
import time

import pytest

pytest.importorskip("pyspark")

import horovod.spark  # noqa: E402
import spark_cases  # noqa: E402
import spark_support  # noqa: E402

FIRST = ("Horovod detected that one or more processes exited with non-zero status, thus causing "
         "the job to be terminated. The first process to do so was:\nProcess name: 1\n"
         "Exit code: ")


def fails(kind, function, *args, **kwargs):
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    return str(caught.value)


def test_results_collectives_and_output(spark):
    stdout, stderr = io.StringIO(), io.StringIO()
    results = horovod.spark.run(spark_cases.who, args=("hello",), kwargs={"mark": "!"},
                                num_proc=2, stdout=stdout, stderr=stderr)
    assert results == [(0, 2, 0, 3.0), (1, 2, 1, 3.0)]
    for rank in (0, 1):
        assert f"[{rank}]<stdout>:hello from {rank}!\n" in stdout.getvalue()
        assert f"[{rank}]<stderr>:a word of {rank}\n" in stderr.getvalue()


def test_environment(spark, monkeypatch):
    monkeypatch.setenv("OF_THE_DRIVER", "private")
    seen = horovod.spark.run(spark_cases.variables, ("OF_THE_DRIVER", "GIVEN"),
                             env={"GIVEN": "yes"})
    assert seen == [[None, "yes"]] * 2
    assert fails(Exception, horovod.spark.run, spark_cases.who, env=os.environ) == \
        "env argument must be a dict, not <class 'os._Environ'>"
    names = horovod.spark.run(spark_cases.all_names, num_proc=1)[0]
    assert not {"PYTHON_WORKER_FACTORY_SECRET", "_PYSPARK_DRIVER_CONN_INFO_PATH",
                "SPARK_AUTH_SOCKET_TIMEOUT", "HOROVOD_KEY", "HOROVOD_RUN_FUNC_FD",
                "HOROVOD_RUN_PARENT_FD"} & set(names)
    assert "OMP_NUM_THREADS" in names and "HOROVOD_RANK" in names


def test_a_rank_that_raises_is_told_with_its_traceback(spark):
    text = fails(RuntimeError, horovod.spark.run, spark_cases.fail, ("raise",), num_proc=2)
    assert text.startswith(FIRST + "1\nRank 1 raised:\nTraceback"), text
    assert "in fail\n" in text and text.rstrip().endswith("no such table: customers"), text


@pytest.mark.parametrize("how, code", [("exit", 3), ("kill", 137)])
def test_a_rank_that_ends_without_a_word(spark, how, code):
    text = fails(RuntimeError, horovod.spark.run, spark_cases.fail, (how,), num_proc=2)
    assert text.startswith(f"{FIRST}{code}\n"), text
    assert (how == "kill") == ("memoryOverhead" in text), text


def test_a_failure_ends_a_rank_that_sleeps(spark):
    start = time.monotonic()
    text = fails(RuntimeError, horovod.spark.run, spark_cases.fail, ("sleepless",), num_proc=2)
    assert text.startswith(FIRST + "1\n") and "while the other sleeps" in text
    assert time.monotonic() - start < 60


def test_a_failure_before_init_ends_those_who_wait_in_it(spark):
    text = fails(RuntimeError, horovod.spark.run, spark_cases.before_init, num_proc=2)
    assert text.startswith(FIRST + "1\n") and "ValueError: before init" in text


def test_a_process_that_the_function_starts_joins_the_job(spark):
    assert horovod.spark.run(spark_cases.below_a_shell, num_proc=2) == ["3", "3"]


def test_an_executable_that_is_not_there(spark):
    text = fails(RuntimeError, horovod.spark.run, spark_cases.who, num_proc=1,
                 executable="/no/such/python")
    assert "Exit code: 127" in text and "/no/such/python" in text


def test_too_few_slots(spark):
    start = time.monotonic()
    text = fails(Exception, horovod.spark.run, spark_cases.who, num_proc=3, start_timeout=3)
    assert text.startswith("Timed out waiting for Spark tasks to start.") and \
        "of 3 tasks have started" in text
    assert 2.5 < time.monotonic() - start < 40
    spark_support.wait_until(
        lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())
    assert len(horovod.spark.run(spark_cases.variables, ("X",), num_proc=2)) == 2


def test_large_function_and_result(spark):
    (first, got), (second, _) = horovod.spark.run(
        spark_cases.large, (30 << 20, os.urandom(20 << 20)), num_proc=2)
    assert got == 20 << 20
    assert first == bytes(30 << 20) and second == b"\1" * (30 << 20)


def test_from_threads_and_after_each_other(spark):
    results = {}

    def job(name):
        results[name] = horovod.spark.run(spark_cases.variables, ("NAME",), num_proc=1,
                                          env={"NAME": name})
    threads = [threading.Thread(target=job, args=(name,)) for name in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: [[name]] for name in ("a", "b", "c")}


def _state(_):
    """What a Python worker must have unchanged after a task of ours."""
    yield (os.getpid(), threading.active_count(), sorted(os.environ), os.getcwd(),
           sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0]
                  for fd in os.listdir("/proc/self/fd") if
                  os.path.exists(f"/proc/self/fd/{fd}")))


def test_the_python_worker_is_reused_and_has_nothing_left(spark):
    rdd = spark.sparkContext.parallelize(range(2), 2)
    before = {state[0]: state for state in rdd.mapPartitions(_state).collect()}
    horovod.spark.run(spark_cases.who, num_proc=2, stdout=io.StringIO())
    with pytest.raises(RuntimeError):
        horovod.spark.run(spark_cases.fail, ("exit",), num_proc=2)
    after = {state[0]: state for state in rdd.mapPartitions(_state).collect()}
    same = set(before) & set(after)
    assert same, "no worker was used again: the test proves nothing"
    assert all(before[pid] == after[pid] for pid in same)


def test_threads_and_descriptors_of_the_driver_do_not_grow(spark):
    def state():
        return len(os.listdir("/proc/self/fd")), sum(
            thread.name.startswith("horovod") for thread in threading.enumerate())
    horovod.spark.run(spark_cases.variables, ("X",), num_proc=2)
    first, runs = state(), 3
    for _ in range(runs):
        horovod.spark.run(spark_cases.variables, ("X",), num_proc=2)
    last = state()
    # Spark's gateway opens a connection for a thread now and then; ours would be one a run.
    assert last[0] - first[0] < runs and first[1] == last[1] == 0, (first, last)


def test_no_context():
    spark_support.stop()
    assert re.match("Could not find an active SparkContext, are you running in a PySpark "
                    "session?", fails(Exception, horovod.spark.run, spark_cases.who))
