#!/usr/bin/env python3
"""How long does a job take to start, and what does its launcher weigh?

As a rank:    start.py --first hvd|gloo|mpi --out FILE     imports, init, one allreduce
As a program: start.py --kind hvd|gloo|mpi [--python P] [--ranks 2,4]     all of it for one system
compare.py calls run().
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

from common import HERE, Spec, System, emit, free_port
from machine import marked, quiet, sweep


def command(spec, ranks, words, python=False, hvd_args=()):
    """A complete command line: the system's own launcher, some ranks of a program."""
    if spec.kind == "gloo":
        head = [spec.tool("torchrun"), "--nnodes", "1", "--master-addr", "127.0.0.1",
                "--master-port", str(free_port()), "--nproc-per-node", str(ranks)]
        return head + ([] if python else ["--no-python"]) + words
    return spec.launcher(ranks, hvd_args, bind=False) + ([spec.python] if python else []) + words


def wall(spec, words, longest=60):
    """(seconds or None when the command failed, its last words)"""
    mark, env = spec.environment()
    with tempfile.TemporaryFile() as log:
        start = time.monotonic()
        process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(longest)
        except subprocess.TimeoutExpired:
            code = -1
        took = time.monotonic() - start
        sweep(mark, [process])
        log.seek(0)
        last = log.read().decode(errors="replace").strip().splitlines()[-3:]
    return (took, "") if code == 0 else (None, f"exit {code}: " + " | ".join(last))


def first_allreduce(spec, ranks, hvd_args=()):
    """Seconds from launch until the last rank has its first allreduce, and the parts of it."""
    with tempfile.TemporaryDirectory(prefix="hvdbench-") as d:
        out = os.path.join(d, "out")
        words = [str(HERE / "start.py"), "--first", spec.kind, "--out", out]
        start = time.monotonic_ns()
        took, why = wall(spec, command(spec, ranks, words, True, hvd_args))
        if took is None:
            return None, why
        with open(out) as f:
            rows = [json.loads(x) for x in f]

    def longest(end, begin=None):
        return round(max(r[end] - (r[begin] if begin else start) for r in rows) * 1e-9, 4)
    return dict(first_s=longest("done"), python_s=longest("begin"),
                imports_s=longest("imported", "begin"), init_s=longest("inited", "imported"),
                allreduce_s=longest("done", "inited"), whole_s=round(took, 4)), ""


def processes():
    """pid -> (command, threads, resident KiB, proportional KiB, CPU seconds), of everybody."""
    found, tick = {}, os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE") // 1024
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                head, tail = f.read().rsplit(")", 1)
            with open(f"/proc/{pid}/smaps_rollup") as f:
                pss = next((int(x.split()[1]) for x in f if x.startswith("Pss:")), 0)
            w = tail.split()
            found[int(pid)] = (head.split("(", 1)[1], int(w[17]), int(w[21]) * page, pss,
                               (int(w[11]) + int(w[12])) / tick)
        except (OSError, IndexError, ValueError):
            continue
    return found


def await_sleepers(mark, process, count):
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        table = processes()
        if sum(table.get(x, ("",))[0] == "sleep" for x in marked(mark)) >= count:
            return True
        time.sleep(0.05)
    return False


def weight(spec, ranks=8, hvd_args=()):
    """The launcher's processes while the ranks sleep."""
    mark, env = spec.environment()
    words = command(spec, ranks, ["sleep", "60"], hvd_args=hvd_args)
    process = subprocess.Popen(words, env=env, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               start_new_session=True)
    try:
        if not await_sleepers(mark, process, ranks):
            return None, "the ranks did not come up"
        time.sleep(1.0)
        before, start = processes(), time.monotonic()
        time.sleep(2.0)
        table, took = processes(), time.monotonic() - start
        mine = [x for x in marked(mark) if x in table and table[x][0] != "sleep"]
        cpu = sum(table[x][4] - before.get(x, table[x])[4] for x in mine)
        return dict(processes=len(mine), threads=sum(table[x][1] for x in mine),
                    rss_mib=round(sum(table[x][2] for x in mine) / 1024, 1),
                    pss_mib=round(sum(table[x][3] for x in mine) / 1024, 1),
                    cpu_percent=round(100 * cpu / took, 2)), ""
    finally:
        sweep(mark, [process])


def run(spec, ranks, what=("true", "script", "first", "weight"), hvd_args=(), wait=3.0):
    """Rows for one system, one round."""
    rows = []
    for n in ranks:
        row = dict(system=spec.name, ranks=n, busy=quiet(wait))
        for key, words, python in (("true", ["true"], False),
                                   ("script", [str(HERE / "trivial.py")], True)):
            if key in what:
                took, why = wall(spec, command(spec, n, words, python, hvd_args))
                row |= {f"{key}_s": took and round(took, 4)} | ({"why": why} if why else {})
                quiet(wait)
        if "first" in what:
            found, why = first_allreduce(spec, n, hvd_args)
            row |= found or {"why": why}
        rows.append(row)
    if "weight" in what:
        quiet(wait)
        found, why = weight(spec, 8, hvd_args)
        rows.append(dict(system=spec.name, ranks=8, weight=found) | ({"why": why} if why else {}))
    return rows


def as_rank(kind, out):
    begin = time.monotonic_ns()
    import torch
    torch.set_num_threads(1)
    __import__(Spec.MODULES[kind])
    imported = time.monotonic_ns()
    s = System(kind).init()
    inited = time.monotonic_ns()
    s.allreduce_(torch.ones(1), "first")
    done = time.monotonic_ns()
    emit(out, rank=s.rank, begin=begin, imported=imported, inited=inited, done=done)
    s.done()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--first")
    p.add_argument("--out")
    p.add_argument("--kind")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--ranks", default="2,4")
    a = p.parse_args()
    if a.first:
        as_rank(a.first, a.out)
        return
    for row in run(Spec(a.kind, a.kind, a.python), [int(x) for x in a.ranks.split(",")]):
        emit(None, **row)


if __name__ == "__main__":
    main()
