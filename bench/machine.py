"""The machine under the benchmarks: is it quiet, where are its CPUs, what is left of a launch."""
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "bench"
CPUS = sorted(os.sched_getaffinity(0))
MARK = "HVD_BENCH_MARK"                 # in the environment of everything a launch starts


def note(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def program(name):
    return str(BUILD / "bench" / name)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# ---------------------------------------------------------------- quiet

def busy_share(seconds=0.25):
    """Share of all CPUs in use, 0 to 1."""
    def look():
        with open("/proc/stat") as f:
            words = [int(x) for x in f.readline().split()[1:9]]
        return sum(words), words[3] + words[4]
    all0, idle0 = look()
    time.sleep(seconds)
    all1, idle1 = look()
    return 1 - (idle1 - idle0) / max(1, all1 - all0)


def quiet(longest):
    """Waits until the machine is idle; how busy it was in the end, 0 to 1."""
    end = time.monotonic() + longest
    while True:
        share = busy_share(min(0.25, max(longest, 0.05)))
        if share <= 0.04 or time.monotonic() > end:
            return round(share, 3)


# ---------------------------------------------------------------- limits

def limits(*words):
    """JSON rows of the program limits; none where it is not built or cannot run."""
    try:
        done = subprocess.run([program("limits"), *map(str, words)], text=True,
                              capture_output=True, timeout=600)
    except FileNotFoundError:
        return []
    except (OSError, subprocess.TimeoutExpired) as e:
        note(f"limits: {e}")
        return []
    if done.returncode != 0:
        note(f"limits: {done.stderr.strip()}")
        return []
    return [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]


def place():
    """Nanoseconds one way between two CPUs, or None."""
    rows = limits("place")
    return rows[0]["spin_ns"] if rows else None


# ---------------------------------------------------------------- processes

def marked(mark):
    """Processes of one launch, wherever they have been reparented to."""
    found, wanted = [], f"{MARK}={mark}".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if wanted in f.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def sweep(mark, processes):
    """Ends what is left of a launch."""
    for _ in range(100):
        for process in processes:
            process.poll()
        left = [pid for pid in marked(mark) if pid != os.getpid()]
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    for process in processes:
        process.wait()


def wait_all(processes, end):
    """None, or what went wrong; returns at the first failure."""
    left = list(processes)
    while left:
        for process in list(left):
            code = process.poll()
            if code is not None:
                left.remove(process)
                if code != 0:
                    return f"exit {code}"
        if left and time.monotonic() > end:
            return "takes too long"
        time.sleep(0.005)
    return None
