"""Starting the systems under test: who they are, with which settings, and how N ranks begin.

Settings of the peers are the best that were found for them on machines with few cores: bound to
cores, yielding only when there are more ranks than CPUs, a malloc that keeps its memory.
"""
import json
import os
import pathlib
import secrets
import shutil
import subprocess
import tempfile
import time

from machine import CPUS, MARK, free_port, program, sweep, wait_all

MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(8 << 30), "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
          "MALLOC_TOP_PAD_": str(256 << 20)}
NETWORK = "10.79.0"                     # of the two namespaces


class Failed(Exception):
    pass


def cpu_of(rank, ranks):
    """The CPUs of a rank as horovodrun binds them: one each when there are more ranks than CPUs."""
    return {CPUS[rank * len(CPUS) // ranks]} if ranks > len(CPUS) else set(CPUS)


def settle(cpus):
    """Of a rank: its CPUs, and a group of its own in our session, as the workers of horovodrun
    have it.  The kernel schedules sessions apart (autogroup), and then yielding is no use."""
    os.setpgid(0, 0)
    os.sched_setaffinity(0, cpus)


# ---------------------------------------------------------------- systems

class System:
    """name in the tables; over: shm, tcp or netns; ours or a peer."""

    def __init__(self, name, over, ours=False):
        self.name, self.over, self.ours = name, over, ours

    def missing(self):
        """None, or why it cannot be measured here."""
        return None

    def start(self, ranks, words, scratch, log):
        """Begins the ranks; returns processes whose end is the end of the launch."""
        raise NotImplementedError


class Ours(System):
    """libhvd through its C API, started as a job without a launcher."""

    def __init__(self, name, over="shm", private=False, build=None):
        super().__init__(name, over, ours=True)
        self.private, self.build = private, build

    def missing(self):
        return None if os.path.exists(self.program()) else "not built"

    def program(self):
        return f"{self.build}/bench/collbench_hvd" if self.build else program("collbench_hvd")

    def start(self, ranks, words, scratch, log):
        key = scratch / "key"
        key.touch(0o600)
        key.write_text(secrets.token_hex(32))
        address = f"{NETWORK}.1" if self.over == "netns" else "127.0.0.1"
        shared = {"HOROVOD_SIZE": ranks, "HOROVOD_KEY_FILE": key, "HOROVOD_JOB_ID": key.parent.name,
                  "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
                  "HOROVOD_GLOO_RENDEZVOUS_PORT": free_port(), **MALLOC}
        if self.over == "tcp":
            shared |= {"HOROVOD_SHM_DISABLE": 1, "HOROVOD_CMA_DISABLE": 1}
        words = [self.program(), *words] + ["-p"] * self.private
        return [self.rank(rank, ranks, words, shared, log) for rank in range(ranks)]

    def rank(self, rank, ranks, words, shared, log):
        env = {**shared, "HOROVOD_RANK": rank, "HOROVOD_RENDEZVOUS_SERVE": int(rank == 0)}
        if self.over == "netns":
            host = rank * 2 // ranks
            words = ["ip", "netns", "exec", namespace(host), *words]
            env["HOROVOD_HOSTNAME"] = namespace(host)
        cpus = cpu_of(rank, ranks)
        return subprocess.Popen(words, env=os.environ | {k: str(v) for k, v in env.items()},
                                preexec_fn=lambda: settle(cpus), **log)


class OpenMpi(System):
    SETTINGS = {
        "ompi-cma": ["pml=ob1", "btl=vader,self"],
        "ompi-ucx": ["pml=ucx", "pml_ucx_tls=any", "pml_ucx_devices=any"],
        "ompi-tcp": ["pml=ob1", "btl=tcp,self", "btl_tcp_if_include=lo"],
        "ompi-netns": ["pml=ob1", "btl=vader,tcp,self",
                       f"btl_tcp_if_include={NETWORK}.0/24",
                       f"oob_tcp_if_include={NETWORK}.0/24"],
    }

    def missing(self):
        if shutil.which("mpirun.openmpi") is None:
            return "no mpirun.openmpi"
        return None if os.path.exists(program("collbench_openmpi")) else "not built"

    def start(self, ranks, words, scratch, log):
        command = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks),
                   "--bind-to", "none" if self.over == "netns" else "core:overload-allowed"]
        settings = [*self.SETTINGS[self.name],
                    f"mpi_yield_when_idle={int(ranks > len(CPUS))}"]
        if self.over == "netns":
            agent = scratch / "agent"
            agent.write_text(AGENT.replace("CPUS", cpus_of_host(1)))
            agent.chmod(0o700)
            settings.append(f"plm_rsh_agent={agent}")
            half = ranks // 2
            command = ["taskset", "-c", cpus_of_host(0), "ip", "netns", "exec", namespace(0),
                       "unshare", "-u", "sh", "-c",
                       f"hostname {namespace(0)} && exec \"$@\"", "sh", *command, "--host",
                       f"{NETWORK}.1:{ranks - half},{NETWORK}.2:{half}"]
        for setting in settings:
            command += ["--mca", *setting.split("=", 1)]
        env = MALLOC | ({"UCX_TLS": "shm,self"} if self.name == "ompi-ucx" else {})
        for name in env:
            command += ["-x", name]
        return [subprocess.Popen([*command, program("collbench_openmpi"), *words],
                                 env=os.environ | env, preexec_fn=os.setpgrp, **log)]


class Mpich(System):
    def missing(self):
        if shutil.which("mpirun.mpich") is None:
            return "no mpirun.mpich"
        return None if os.path.exists(program("collbench_mpich")) else "not built"

    def start(self, ranks, words, scratch, log):
        bind = ["-bind-to", "core"] if ranks <= len(CPUS) else []
        return [subprocess.Popen(["mpirun.mpich", *bind, "-np", str(ranks),
                                  program("collbench_mpich"), *words],
                                 env=os.environ | MALLOC, preexec_fn=os.setpgrp, **log)]


SYSTEMS = [
    Ours("hvd-mapped"), Ours("hvd-private", private=True),
    OpenMpi("ompi-cma", "shm"), OpenMpi("ompi-ucx", "shm"), Mpich("mpich", "shm"),
    Ours("hvd-tcp", "tcp"), OpenMpi("ompi-tcp", "tcp"),
    Ours("hvd-netns", "netns"), OpenMpi("ompi-netns", "netns"),
]


# ---------------------------------------------------------------- two hosts on one machine

# mpirun's idea of ssh: agent HOST COMMAND..., where the last number of the address is the host.
# Each host has its own half of the CPUs: mpirun itself would bind the ranks of both to the same.
AGENT = """#!/bin/sh
host=$1
shift
exec taskset -c CPUS ip netns exec hvdbench${host##*.} unshare -u sh -c \
    "hostname hvdbench${host##*.} && $*"
"""


def cpus_of_host(host):
    half = len(CPUS) * host // 2
    return ",".join(map(str, CPUS[half:len(CPUS) * (host + 1) // 2] or CPUS))


def namespace(host):
    return f"hvdbench{host + 1}"


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True)


class TwoHosts:
    """Two network namespaces joined by a veth pair; `why` says why not, if not."""

    def __enter__(self):
        self.why = None
        steps = [["netns", "add", namespace(0)], ["netns", "add", namespace(1)],
                 ["link", "add", "hvdb1", "netns", namespace(0), "type", "veth",
                  "peer", "name", "hvdb2", "netns", namespace(1)]]
        for host in (0, 1):
            at = ["-n", namespace(host)]
            steps += [[*at, "link", "set", "lo", "up"],
                      [*at, "addr", "add", f"{NETWORK}.{host + 1}/24", "dev", f"hvdb{host + 1}"],
                      [*at, "link", "set", f"hvdb{host + 1}", "up"]]
        if shutil.which("ip") is None:
            self.why = "no ip program"
        for step in steps if self.why is None else []:
            done = ip(*step)
            if done.returncode != 0:
                self.why = (done.stderr.strip() or "ip failed").splitlines()[-1]
                break
        return self

    def __exit__(self, *_):
        for host in (0, 1) if shutil.which("ip") else ():
            ip("netns", "del", namespace(host))


# ---------------------------------------------------------------- one launch

def rows_of(path):
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                pass
    return rows


def launch(system, ranks, ops, sizes, seconds, limit):
    """Runs collbench once; its rows.  Failed carries the last words of what failed; rows that
    came before are in its `rows`."""
    mark = secrets.token_hex(16)
    where = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="hvdbench-", dir=where) as name:
        scratch = pathlib.Path(name)
        (scratch / "board").touch()
        words = ["-B", str(scratch / "board"), "-o", ",".join(ops),
                 "-z", ",".join(map(str, sizes)), "-t", str(seconds)]
        os.environ[MARK] = mark
        with open(scratch / "out", "w") as out:
            log = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": subprocess.STDOUT}
            processes = system.start(ranks, words, scratch, log)
            try:
                why = wait_all(processes, time.monotonic() + limit)
            finally:
                del os.environ[MARK]
                sweep(mark, processes)
        rows = rows_of(scratch / "out")
        if why is not None:
            last = [x for x in (scratch / "out").read_text(errors="replace").splitlines()
                    if x.strip() and not x.startswith("{")][-4:]
            failure = Failed("; ".join([why, *last]))
            failure.rows = rows
            raise failure
    return rows
