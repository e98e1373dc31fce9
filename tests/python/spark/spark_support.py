"""One Spark at a time for all tests of this folder; conftest.py has the fixtures.

``local`` is ``local[2]`` with event log and user interface; ``cluster`` has two executors that
are processes of their own.  Asking for one stops the other.
"""
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import pyspark
from pyspark.sql import SparkSession

HERE = pathlib.Path(__file__).resolve().parent
MASTERS = {"local": "local[2]", "cluster": "local-cluster[2,1,1024]"}
MARK = "HVD_SPARK_TEST"

_kind = None
_session = None
_before = {}
_folder = None


def folder():
    """Where event logs, flight recorders and temporary files are."""
    return _folder


def enter():
    """The environment of the tests of this folder: the JVM and all below inherit it."""
    global _folder
    if _folder is not None:
        return
    _folder = pathlib.Path(tempfile.mkdtemp(prefix="hvs"))
    for name in ("events", "tmp", "records", "local"):
        (_folder / name).mkdir()
    path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    for name, value in {"PYSPARK_PYTHON": sys.executable, "TMPDIR": str(_folder / "tmp"),
                        "HOROVOD_RECORDER_DIR": str(_folder / "records"),
                        "PYTHONPATH": os.pathsep.join(path), MARK: str(os.getpid()),
                        "SPARK_LOCAL_IP": "127.0.0.1",
                        "PYTHONDONTWRITEBYTECODE": "1"}.items():
        _before[name] = os.environ.get(name)
        os.environ[name] = value
    tempfile.tempdir = None


def builder(master):
    result = SparkSession.builder.master(master).appName("horovod-tests")
    for name, value in {
            "spark.ui.enabled": "true", "spark.ui.port": "0",
            "spark.ui.showConsoleProgress": "false", "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{_folder}/events",
            "spark.local.dir": str(_folder / "local"),
            "spark.sql.shuffle.partitions": "2"}.items():
        result = result.config(name, value)
    return result


def use(kind):
    """The session of ``"local"`` or ``"cluster"``, started if it does not run already."""
    global _kind, _session
    if _kind == kind:
        return _session
    stop()
    enter()
    _session = builder(MASTERS[kind]).getOrCreate()
    _session.sparkContext.setLogLevel("OFF")
    _kind = kind
    return _session


def executor_folder(session):
    """Where the executors of a cluster write their logs."""
    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return pathlib.Path(home) / "work" / session.sparkContext.applicationId


def stop():
    global _kind, _session
    session, _session, _kind = _session, None, None
    if session is None:
        return
    output = executor_folder(session)
    session.stop()
    shutil.rmtree(output, ignore_errors=True)


def finish():
    """Ends the JVM, too, and puts the environment back."""
    global _folder
    stop()
    gateway = pyspark.SparkContext._gateway
    if gateway is not None:
        process = gateway.proc
        gateway.shutdown()
        pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
        process.stdin.close()
        process.wait(30)
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
    tempfile.tempdir = None
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
    _folder = None


# ---- Processes ----------------------------------------------------------------------------

def is_alive(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(pid):
    """The executor above a process."""
    while b"CoarseGrainedExecutorBackend" not in pathlib.Path(
            f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    return pid


def training_processes():
    """Pids of what runs below a Spark task of ours."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"horovod.runner.run_task" in (entry / "cmdline").read_bytes() and \
                    f"{MARK}={os.getpid()}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if is_alive(pid)]


def wait_until(condition, limit=20.0):
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)


def kill(pid):
    os.kill(pid, signal.SIGKILL)
