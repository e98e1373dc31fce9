"""horovod.spark.run_elastic: executors, tasks and processes that are lost and gained."""
import json

import pytest

pytest.importorskip("pyspark")

import horovod.spark  # noqa: E402
from horovod.runner.common.util.timeout import TimeoutException  # noqa: E402
from horovod.spark import _elastic_job  # noqa: E402
import spark_cases  # noqa: E402
import spark_support  # noqa: E402

STEPS = 30


def events(path, what):
    with open(path) as file:
        return [e for e in map(json.loads, file) if e["what"] == what]


def test_arguments(spark):
    with pytest.raises(ValueError, match="min_num_proc 3, num_proc 2"):
        horovod.spark.run_elastic(spark_cases.who, num_proc=2, min_num_proc=3)
    with pytest.raises(ValueError, match="elastic_timeout"):
        horovod.spark.run_elastic(spark_cases.who, num_proc=2, elastic_timeout=-1)
    with pytest.warns(DeprecationWarning, match="max_num_proc"), pytest.raises(ValueError):
        horovod.spark.run_elastic(spark_cases.who, num_proc=2, max_np=1)


def test_too_few_slots(spark):
    with pytest.raises(TimeoutException, match="of 3 tasks have started"):
        horovod.spark.run_elastic(spark_cases.who, num_proc=3, start_timeout=5)


def test_a_function_without_a_state(spark):
    """Two processes of one machine share its memory: they are local ranks 0 and 1."""
    results = horovod.spark.run_elastic(spark_cases.who, num_proc=2)
    assert results == [(0, 2, 0, 3.0), (1, 2, 1, 3.0)]


def test_a_process_fails_in_the_last_attempt(spark, tmp_path, capfd):
    """In local[2] a failed task would end the stage: the process is started again in it."""
    assert _elastic_job.attempts_allowed(spark.sparkContext) == 1
    journal = str(tmp_path / "journal")
    results = horovod.spark.run_elastic(spark_cases.train_elastic, (journal, STEPS, "exit"),
                                        num_proc=2)
    assert results == [(0, 2, STEPS), (1, 2, STEPS)]
    done = sorted((e["step"], e["rank"]) for e in events(journal, "step"))
    assert done == [(step, rank) for step in range(STEPS) for rank in (0, 1)]
    assert len({e["pid"] for e in events(journal, "enter")}) == 3
    said = capfd.readouterr().err
    for word in ("[horovod.spark]", "ended with code 7", "2 workers train on"):
        assert word in said, said


def test_a_function_that_always_fails(spark):
    with pytest.raises(RuntimeError, match="no such table: customers"):
        horovod.spark.run_elastic(spark_cases.fail, ("raise",), num_proc=2)


def test_an_executor_dies_and_another_one_joins(cluster, tmp_path):
    journal = str(tmp_path / "journal")
    results = horovod.spark.run_elastic(
        spark_cases.train_elastic, (journal, 10, "executor"), num_proc=2, min_num_proc=1,
        start_timeout=100, elastic_timeout=100)
    assert results == [(0, 2, 10), (1, 2, 10)], results
    entered = events(journal, "enter")
    assert len({e["pid"] for e in entered}) == 3
    assert 1 in {e["size"] for e in entered}, "nobody trained on alone"
    steps = {}
    for e in events(journal, "step"):
        steps.setdefault(e["step"], []).append(e["rank"])
    assert sorted(steps) == list(range(10)) and all(r in ([0], [0, 1], [1, 0])
                                                    for r in steps.values()), steps
    pids = {e["pid"] for e in entered}
    spark_support.wait_until(lambda: not any(map(spark_support.is_alive, pids)))
