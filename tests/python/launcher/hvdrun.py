"""Tools of the launcher's tests: run horovodrun, and see what it has left behind."""
import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid

BIN = pathlib.Path(sys.executable).parent
# The variable serves runs of these tests with a sanitized build.
HOROVODRUN = os.environ.get("HVD_TEST_LAUNCHER") or shutil.which(
    "horovodrun", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
MARK = "HVD_TEST_MARK"
# Where ranks write what they did last, when they fail; goes with the tests.
RECORDS = tempfile.TemporaryDirectory(prefix="hvd-test-")


@dataclasses.dataclass
class Done:
    code: int
    out: bytes
    err: bytes
    seconds: float

    @property
    def text(self):
        return self.out.decode("utf-8", "replace")

    @property
    def error(self):
        return self.err.decode("utf-8", "replace")

    def lines(self):
        """Of stdout, sorted: ranks print in any order."""
        return sorted(self.text.splitlines())


def environment(env=None, **more):
    """Ours without anything of a job, and a mark all processes of the run inherit."""
    result = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_"))}
    result.update(OMP_NUM_THREADS="1", HOROVOD_RECORDER_DIR=RECORDS.name,
                  PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    result[MARK] = uuid.uuid4().hex
    result.update(env or {})
    result.update(more)
    return result


def processes(mark):
    """Processes that carry the mark: {pid: state}."""
    found, word = {}, f"{MARK}={mark}".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if word in file.read().split(b"\0"):
                    found[int(entry)] = open(f"/proc/{entry}/stat").read().rsplit(")")[1].split()[0]
        except OSError:
            continue
    return found


def living(mark):
    """Pids that carry the mark and are not dead."""
    return [pid for pid, state in processes(mark).items() if state not in "ZX"]


def wait_until(condition, limit=60.0):
    """The first true value of condition(), which is asked every few ms."""
    end = time.monotonic() + limit
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.01)
    return value


def assert_gone(mark, limit=20.0):
    """Nothing that carries the mark is left after `limit` s; what is, is killed."""
    end = time.monotonic() + limit
    while (left := living(mark)) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert not left, f"processes left: {left}"


def start(*args, env=None, **kwargs):
    """horovodrun under way; its mark is in .mark."""
    full = environment(env)
    options = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    options.update(kwargs)
    process = subprocess.Popen([HOROVODRUN, *args], env=full, **options)
    process.mark = full[MARK]
    return process


def finish(process, limit=60.0, began=None):
    """Its output and code; nothing may be left."""
    began = began or time.monotonic()
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        assert_gone(process.mark)
        raise AssertionError(f"horovodrun did not end within {limit} s:\n{out!r}\n{err!r}")
    seconds = time.monotonic() - began
    assert_gone(process.mark)
    return Done(process.returncode, out, err, seconds)


def run(*args, env=None, limit=60.0, **kwargs):
    """Runs horovodrun to its end."""
    data = kwargs.pop("input", None)
    began = time.monotonic()
    if data is None:
        return finish(start(*args, env=env, **kwargs), limit, began)
    process = start(*args, env=env, stdin=subprocess.PIPE, **kwargs)
    out, err = process.communicate(data, timeout=limit)
    assert_gone(process.mark)
    return Done(process.returncode, out, err, time.monotonic() - began)
