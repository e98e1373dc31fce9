"""What the programs of this folder share: the board, one rank's view of a system, launching.

The board is a small file mapped by every rank of a launch: a barrier, a few words, and room for
time stamps.  It belongs to the benchmark and not to any system under test, so that every system is
started, stopped and timed by the same means.  All ranks are on one machine, hence one clock.
"""
import argparse
import json
import mmap
import os
import pathlib
import secrets
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from launch import MALLOC, OpenMpi                                          # noqa: E402
from machine import CPUS, MARK, free_port, sweep, wait_all                  # noqa: E402

LINE = 64                               # bytes: a line a rank, one writer a line
WORDS = 64                              # words of rank 0 that everybody may read
STAMPS = 8192                           # time stamps per rank
SPINS = 20                              # looks at a flag before a waiting rank sleeps


class Board:
    """Layout: ranks x LINE (barrier counters), WORDS x 8, ranks x STAMPS x 8."""

    def __init__(self, path, rank=0, size=1, create=False):
        self.rank, self.size, self.turn = rank, size, 0
        length = size * LINE + WORDS * 8 + size * STAMPS * 8
        if create:
            with open(path, "wb") as f:
                f.truncate(length)
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), length)
        self.words = memoryview(self.map).cast("q")
        self.flags = [r * LINE // 8 for r in range(size)]
        self.first_word = size * LINE // 8
        self.stop = self.first_word + 1         # rank 0 says: enough samples
        self.area = self.first_word + WORDS

    def arrive(self):
        self.turn += 1
        self.words[self.flags[self.rank]] = self.turn
        return self.turn

    def barrier(self, longest=60.0):
        turn, end = self.arrive(), None
        for flag in self.flags:
            looks = 0
            while self.words[flag] < turn:
                looks += 1
                if looks <= SPINS:
                    os.sched_yield()
                    continue
                # Sleep soon: a rank that is done must not hold a CPU that helper threads of its
                # peers need; sched_yield does not give it up before the end of the time slice.
                end = end or time.monotonic() + longest
                time.sleep(0.0001)
                if time.monotonic() > end:
                    raise SystemExit(f"rank {self.rank}: a peer did not reach barrier {turn}")

    def lazy_barrier(self, longest=120.0):
        """The same without using the CPU while waiting."""
        turn, end = self.arrive(), time.monotonic() + longest
        while any(self.words[flag] < turn for flag in self.flags):
            time.sleep(0.002)
            if time.monotonic() > end:
                raise SystemExit(f"rank {self.rank}: a peer did not reach barrier {turn}")

    def agree(self, value):
        """Rank 0's integer, on every rank."""
        if self.rank == 0:
            self.words[self.first_word] = value
        self.barrier()
        value = self.words[self.first_word]
        self.barrier()
        return value

    def publish(self, stamps):
        """Puts this rank's stamps on the board; returns when everybody has."""
        at = self.area + self.rank * STAMPS
        for i, stamp in enumerate(stamps):
            self.words[at + i] = stamp
        self.barrier()

    def stamps(self, rank, count):
        at = self.area + rank * STAMPS
        return list(self.words[at:at + count])

    def spans(self, count):
        """After publish(starts + ends) of `count` samples: latest end - latest start, seconds."""
        of = [self.stamps(r, 2 * count) for r in range(self.size)]
        return [(max(x[count + i] for x in of) - max(x[i] for x in of)) * 1e-9
                for i in range(count)]


# ---------------------------------------------------------------- inside a rank

def rank_arguments(secs, of):
    """What every program of a rank takes; `secs` is the default time per `of`."""
    p = argparse.ArgumentParser()
    p.add_argument("--system", required=True)
    p.add_argument("--board", required=True)
    p.add_argument("--out")
    p.add_argument("--secs", type=float, default=secs, help=f"time per {of}")
    return p


class System:
    """One system under test, seen from one rank.  kind: hvd, gloo, mpi, plain."""

    VARIABLES = {"plain": ("RANK", "WORLD_SIZE"), "gloo": ("RANK", "WORLD_SIZE"),
                 "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                 "hvd": ("HOROVOD_RANK", "HOROVOD_SIZE")}

    def __init__(self, kind, board_path=None):
        self.kind, self.board = kind, None
        rank, size = self.VARIABLES[kind]
        self.rank, self.size = int(os.environ[rank]), int(os.environ[size])
        if board_path:
            self.board = Board(board_path, self.rank, self.size)

    def init(self):
        if self.kind == "hvd":
            import horovod.torch as hvd
            hvd.init()
            self.hvd = hvd
        elif self.kind == "gloo":
            import torch.distributed as dist
            dist.init_process_group("gloo", init_method="env://")
            self.dist = dist
        elif self.kind == "mpi":
            from mpi4py import MPI
            self.MPI, self.comm = MPI, MPI.COMM_WORLD
        return self

    def allreduce_(self, tensor, name):
        """Sum, in place, blocking."""
        if self.kind == "hvd":
            self.hvd.allreduce_(tensor, name=name, op=self.hvd.Sum)
        elif self.kind == "gloo":
            self.dist.all_reduce(tensor)
        elif self.kind == "mpi":
            self.comm.Allreduce(self.MPI.IN_PLACE, tensor.numpy())

    def done(self):
        if self.kind == "hvd":
            self.hvd.shutdown()
        elif self.kind == "gloo":
            self.dist.destroy_process_group()


def emit(out, **row):
    """One JSON line, to the file if there is one: launchers decorate what their ranks print."""
    line = json.dumps(row)
    if not out:
        print(line, flush=True)
        return
    with open(out, "a") as f:
        f.write(line + "\n")


# ---------------------------------------------------------------- outside: launching

class Spec:
    """A system as the driver knows it: its name in the tables, its kind, its interpreter."""

    MODULES = {"hvd": "horovod.torch", "gloo": "torch.distributed", "mpi": "mpi4py",
               "plain": "torch"}

    def __init__(self, name, kind, python):
        self.name, self.kind, self.python = name, kind, python

    def tool(self, name):
        beside = os.path.join(os.path.dirname(self.python), name)
        return beside if os.path.exists(beside) else shutil.which(name)

    def missing(self):
        """None, or why this system cannot be measured here."""
        module = self.MODULES[self.kind]
        code = ("import importlib.util as u, sys; "
                f"sys.exit(not (u.find_spec('torch') and u.find_spec({module!r})))")
        try:
            done = subprocess.run([self.python, "-c", code], capture_output=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as e:
            return str(e)
        if done.returncode != 0:
            return f"no {module} for {self.python}"
        if self.kind == "hvd" and not self.tool("horovodrun"):
            return f"no horovodrun for {self.python}"
        if self.kind == "mpi" and not mpirun():
            return "no mpirun of Open MPI"
        return None

    def launcher(self, ranks, hvd_args=(), bind=True):
        """The words before the program, for systems that have a launcher."""
        if self.kind == "hvd":
            return [self.tool("horovodrun"), "-np", str(ranks), *hvd_args]
        return mpi_words(self, ranks, bind) if self.kind == "mpi" else None

    def environment(self, threads=1):
        """Variables of a launch, and the mark that finds its processes."""
        mark = secrets.token_hex(16)
        path = os.path.dirname(self.python) + os.pathsep + os.environ.get("PATH", "")
        return mark, {**os.environ, MARK: mark, "PATH": path, "OMP_NUM_THREADS": str(threads),
                      "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}


def mpirun():
    return shutil.which("mpirun.openmpi") or shutil.which("mpirun")


def mpi_words(spec, ranks, bind):
    """Open MPI at its best on one machine, as in ../launch.py."""
    ucx = spec.name.endswith("ucx")
    settings = [*OpenMpi.SETTINGS["ompi-ucx" if ucx else "ompi-cma"],
                f"mpi_yield_when_idle={int(ranks > len(CPUS))}"]
    words = [mpirun(), "--allow-run-as-root", "--oversubscribe", "-np", str(ranks),
             "--bind-to", "core:overload-allowed" if bind else "none"]
    for setting in settings:
        words += ["--mca", *setting.split("=", 1)]
    for name, value in (MALLOC | ({"UCX_TLS": "shm,self"} if ucx else {})).items():
        words += ["-x", f"{name}={value}"]
    return words


class Launch:
    """One run of some ranks.  Leaves nothing behind: whatever carries its mark is ended."""

    def __init__(self, spec, ranks, words, hvd_args=(), bind=True):
        where = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="hvdbench-", dir=where))
        self.out, board = self.dir / "out.jsonl", self.dir / "board"
        Board(board, 0, ranks, create=True)
        self.mark, env = spec.environment()
        self.log = open(self.dir / "log", "w+b")
        command = [spec.python, str(HERE / words[0]), *words[1:], "--system", spec.kind,
                   "--board", str(board), "--out", str(self.out)]
        opts = {"stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": subprocess.STDOUT,
                "start_new_session": True}
        head = spec.launcher(ranks, hvd_args, bind)
        if head:
            self.processes = [subprocess.Popen(head + command, env=env, **opts)]
            return
        # gloo and plain: processes with the usual variables are lighter than torchrun.
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
                "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        self.processes = [
            subprocess.Popen(command, env={**env, "RANK": str(r), "LOCAL_RANK": str(r)}, **opts)
            for r in range(ranks)]

    def wait(self, longest=180):
        """Rows the ranks wrote, and an error text or None."""
        why = wait_all(self.processes, time.monotonic() + longest)
        try:
            rows = [json.loads(x) for x in self.out.read_text().splitlines()]
        except OSError:
            rows = []
        return rows, why

    def tail(self, count=8):
        self.log.flush()
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip().splitlines()[-count:]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        sweep(self.mark, self.processes)
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)
