"""One Ray at a time for all tests of this folder; conftest.py has the fixtures.

``shared`` is a Ray of 8 CPUs and 4 GPUs (numbers, not hardware), known also as host-1 to host-3,
that the modules share;
``two nodes`` is one of two nodes on this machine.  Asking for one stops the other.

Everything lies below a directory of its own with a short name (Unix sockets): HOME, because the
first start of Ray writes a token there, and RAY_TMPDIR, because a cluster writes its address there,
where a bare ``ray.init()`` of somebody else would find it.
"""
import contextlib
import importlib.util
import os
import pathlib
import shutil
import signal
import tempfile
import time

import ray

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = dict(object_store_memory=100 << 20, include_dashboard=False)
MARK = f"HVD_RAY_TEST={os.getpid()}"
# Before Ray starts: its processes inherit it.  The first is that of Ray Train, which notices the
# end of a run by asking; the second that of Ray, which gives up a node that refuses five times.
# A watcher for preemption would be one more process in every attempt; no test drains under Train.
# Without the memory monitor: it ends workers because of what others on the machine use.
VARIABLES = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2", "RAY_health_check_period_ms": "500",
             "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_USAGE_STATS_ENABLED": "0",
             "RAY_memory_monitor_refresh_ms": "0",
             "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
             "HVD_RAY_TEST": str(os.getpid())}

_kind = None
_cluster = None
_before = {}
_folder = None


def marked_processes():
    """{pid: command} of what Ray has started for these tests."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int(entry.name) != os.getpid() and \
                    MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(
                    b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
    return {pid: command for pid, command in found.items() if command}


def folder():
    """Where HOME, sessions, logs and flight recorders are."""
    return _folder


def enter():
    """The environment of the tests of this folder."""
    global _folder
    if _folder is not None:
        return
    _folder = pathlib.Path(tempfile.mkdtemp(prefix="hvr", dir="/tmp"))
    (_folder / "home").mkdir()
    (_folder / "records").mkdir()
    (_folder / "ray").mkdir()
    variables = dict(VARIABLES, HOME=str(_folder / "home"), RAY_TMPDIR=str(_folder),
                     HOROVOD_RECORDER_DIR=str(_folder / "records"),
                     PYTHONPATH=os.pathsep.join(
                         [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    for name, value in variables.items():
        _before[name] = os.environ.get(name)
        os.environ[name] = value
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:       # as a shell starts what runs behind
        signal.signal(signal.SIGINT, signal.default_int_handler)


def leave():
    global _folder
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()
    if _folder is not None:
        shutil.rmtree(_folder, ignore_errors=True)
    _folder = None


def _retry(start):
    """A node has 30 s to come up, whatever else the machine does."""
    for attempt in range(3):
        try:
            return start()
        except Exception as error:
            stop_ray()
            if attempt == 2 or "timed out during startup" not in str(error):
                raise


def has_dashboard():
    """Whether the packages for it are installed (ray[default])."""
    return importlib.util.find_spec("aiohttp_cors") is not None


def _start_shared():
    ray.init(address="local", num_cpus=8, num_gpus=4, _temp_dir=str(_folder / "r"),
             resources={f"node:host-{n}": 1.0 for n in range(1, 4)},
             **dict(OPTIONS, include_dashboard=has_dashboard()))


def _start_two_nodes():
    global _cluster
    from ray.cluster_utils import Cluster
    _cluster = Cluster()
    for _ in range(2):
        add_node()
    ray.init(address=_cluster.address)


def add_node():
    """One more of 2 CPUs.  In the main thread only: Ray sets a signal handler."""
    return _cluster.add_node(num_cpus=2, temp_dir=str(_folder / "c"), **OPTIONS)


def remove_node(node, is_killed=True):
    _cluster.remove_node(node, allow_graceful=not is_killed)


def stop_ray():
    """Stops Ray wholly: no process of it is left when this returns."""
    global _kind, _cluster
    _kind = None
    with contextlib.suppress(Exception):
        ray.shutdown()
    if _cluster is not None:
        _cluster.shutdown()
        _cluster = None
    deadline = time.monotonic() + 20
    while (left := marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def use_ray(kind):
    """``"shared"`` or ``"two nodes"``: started if it does not run already."""
    global _kind
    if _kind == kind:
        return
    if _kind is not None:
        stop_ray()
    enter()
    _retry({"shared": _start_shared, "two nodes": _start_two_nodes}[kind])
    _kind = kind


def alone():
    """For tests that run a Ray of their own in a process of their own."""
    if _kind is not None:
        stop_ray()
    enter()


def finish():
    if _kind is not None or _cluster is not None:
        stop_ray()
    leave()
