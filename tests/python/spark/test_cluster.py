"""horovod.spark.run on executors that are processes of their own, and what must not be seen."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

import pytest

pytest.importorskip("pyspark")

import horovod.spark  # noqa: E402
from horovod import _core  # noqa: E402
import spark_cases  # noqa: E402
import spark_support  # noqa: E402


def pids_in(folder, count=2):
    """Of the training processes, when all have written theirs."""
    def there():
        return len([p for p in pathlib.Path(folder).iterdir() if p.read_text()]) == count
    spark_support.wait_until(there, 90)
    return {p.name: int(p.read_text()) for p in pathlib.Path(folder).iterdir()}


class Background:
    """A run in a thread, whose end is awaited."""

    def __init__(self, *args, **kwargs):
        self.error = self.result = None

        def call():
            try:
                self.result = horovod.spark.run(*args, **kwargs)
            except Exception as e:
                self.error = e
        self.thread = threading.Thread(target=call)
        self.thread.start()

    def wait(self, limit=90):
        self.thread.join(limit)
        assert not self.thread.is_alive()
        return str(self.error)


def test_an_executor_dies(cluster, tmp_path):
    job = Background(spark_cases.wait_for_ever, (str(tmp_path),), num_proc=2)
    pids = pids_in(tmp_path)
    start = time.monotonic()
    spark_support.kill(spark_support.executor_of(pids["1"]))
    text = job.wait()
    assert time.monotonic() - start < 60
    assert "Process name: 1\n" in text and "was lost" in text, text
    spark_support.wait_until(lambda: not any(map(spark_support.is_alive, pids.values())))


def test_the_next_job_runs_on_a_new_executor(cluster):
    results = horovod.spark.run(spark_cases.who, num_proc=2, start_timeout=100)
    assert results == [(0, 2, 0, 3.0), (1, 2, 1, 3.0)]


def test_a_python_worker_dies(cluster, tmp_path):
    job = Background(spark_cases.wait_for_ever, (str(tmp_path),), num_proc=2)
    pids = pids_in(tmp_path)
    spark_support.kill(spark_support.parent_of(pids["0"]))
    text = job.wait()
    assert "Process name: 0\n" in text and "was lost" in text, text
    spark_support.wait_until(lambda: not any(map(spark_support.is_alive, pids.values())))


def test_the_key_is_nowhere_to_be_seen(cluster, monkeypatch):
    """Not in the event log, the pages of the user interface, the executors' logs."""
    key = bytes(range(200, 232))
    monkeypatch.setattr(_core, "generate_key", lambda: key)
    horovod.spark.run(spark_cases.who, num_proc=2)
    with pytest.raises(RuntimeError):
        horovod.spark.run(spark_cases.fail, ("raise",), num_proc=2)
    forms = [key, key.hex().encode(), key.hex().upper().encode(), repr(key).encode(),
             json.dumps(list(key)).encode(), key.decode("latin-1").encode()]
    places = {str(p): p.read_bytes() for folder in (spark_support.folder() / "events",
                                                    spark_support.executor_folder(cluster))
              for p in folder.rglob("*") if p.is_file()}
    assert any("events" in name for name in places) and any("stderr" in n for n in places)
    ui = cluster.sparkContext.uiWebUrl
    application = cluster.sparkContext.applicationId
    for page in ("environment/", f"api/v1/applications/{application}/environment", "jobs/",
                 "stages/", f"api/v1/applications/{application}/jobs"):
        places[page] = urllib.request.urlopen(f"{ui}/{page}", timeout=30).read()
    assert b"spark.app.name" in places["environment/"] or \
        b"horovod-tests" in places[f"api/v1/applications/{application}/environment"]
    seen = [name for name, data in places.items() if any(form in data for form in forms)]
    assert not seen


DRIVER = """
import sys, threading
sys.path.insert(0, {here!r})
import horovod.spark, spark_cases
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
session.sparkContext.setLogLevel("OFF")
try:
    horovod.spark.run(spark_cases.wait_for_ever, ({folder!r},), num_proc=2)
except KeyboardInterrupt:
    assert not session.sparkContext.statusTracker().getActiveJobsIds()
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", ["interrupt", "kill"])
def test_the_driver_ends(how, tmp_path):
    """Interrupted or killed: the training processes go with it."""
    spark_support.enter()
    (tmp_path / "pids").mkdir()
    program = DRIVER.format(here=str(spark_support.HERE), folder=str(tmp_path / "pids"))
    driver = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        pids = pids_in(tmp_path / "pids")
        os.kill(driver.pid, 2 if how == "interrupt" else 9)
        out, _ = driver.communicate(timeout=60)
        assert ("interrupted" in out) == (how == "interrupt")
        spark_support.wait_until(lambda: not any(map(spark_support.is_alive, pids.values())))
    finally:
        driver.kill()
        driver.wait()
