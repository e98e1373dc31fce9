#!/usr/bin/env python3
"""Compares an installed horovod with torch.distributed (gloo) and mpi4py (Open MPI), from Python.

    compare.py --quick                              2 ranks, allreduce, model a: under a minute
    compare.py --json out.json                      everything, 2 and 4 ranks: under 15 minutes
    compare.py --hvd new=/venv-a/bin/python --hvd old=/venv-b/bin/python --parts ops,step

The first --hvd is "ours"; every other system is a peer.  What is not installed is skipped with a
line.  In each round every system is launched once, in an order that rotates, each launch after a
wait for a quiet machine.  Exit status 1: a result was wrong or a launch of a horovod failed.
"""
import argparse
import json
import os
import platform
import signal
import statistics
import sys
import time

import start
import tables
from common import Launch, Spec
from machine import note, place, quiet

OPS = "allreduce,allgather,broadcast,alltoall,reducescatter,grouped"
SIZES = "4,1024,16384,65536,262144,1048576,4194304,16777216,67108864"
SHARES = {"ops": 0.45, "sparse": 0.15, "step": 0.30, "idle": 0.10, "start": 0.15}   # of the time
QUICK = dict(parts="ops,step", ranks="2", ops="allreduce", models="a", no_ucx=True, budget=40,
             sizes="4,1024,16384,262144,4194304,67108864", wait=1.0, limit=30, secs=0.05,
             step_secs=1.0)


def arguments():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--hvd", action="append", metavar="[NAME=]PYTHON",
                   help="interpreter with a horovod; may be repeated (default: this one)")
    p.add_argument("--hvd-args", default="", help="more words for horovodrun")
    p.add_argument("--peer-python", default=sys.executable,
                   help="interpreter with torch and mpi4py for the peers")
    p.add_argument("--no-gloo", action="store_true")
    p.add_argument("--no-mpi", action="store_true")
    p.add_argument("--no-ucx", action="store_true")
    p.add_argument("--parts", default="ops,sparse,step,idle,start")
    p.add_argument("--ranks", default="2,4")
    p.add_argument("--ops", default=OPS)
    p.add_argument("--sizes", default=SIZES)
    p.add_argument("--models", default="a,b,c,d")
    p.add_argument("--secs", type=float, default=0.06, help="per operation and size")
    p.add_argument("--step-secs", type=float, default=1.5, help="per model")
    p.add_argument("--rounds", type=int, default=5, help="at most")
    p.add_argument("--budget", type=float, default=840,
                   help="seconds: no further round is begun that would not fit")
    p.add_argument("--wait", type=float, default=5, help="longest wait for a quiet machine, s")
    p.add_argument("--limit", type=float, default=180, help="longest launch, seconds")
    p.add_argument("--quick", action="store_true")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    for name, value in QUICK.items() if a.quick else ():
        setattr(a, name, value)
    return a


def systems(a):
    """Ours first, then the peers that can be measured."""
    wanted = []
    for i, word in enumerate(a.hvd or [sys.executable]):
        name, _, python = word.rpartition("=")
        wanted.append(Spec(name or ("horovod" if i == 0 else f"horovod-{i + 1}"), "hvd", python))
    if not a.no_gloo:
        wanted.append(Spec("gloo", "gloo", a.peer_python))
    if not a.no_mpi:
        wanted.append(Spec("mpi", "mpi", a.peer_python))
    if not a.no_mpi and not a.no_ucx:
        wanted.append(Spec("mpi-ucx", "mpi", a.peer_python))
    here = []
    for s in wanted:
        why = s.missing()
        if why:
            note(f"skipped: {s.name}: {why}")
        else:
            here.append(s)
    return here


class Run:
    def __init__(self, a):
        self.a, self.began = a, time.monotonic()
        self.rows, self.failed, self.bad = [], {}, False
        self.end = self.began + a.budget + 4     # on a loaded machine: what runs then is cut short
        self.systems = systems(a)
        self.ours = next((s for s in self.systems if s.kind == "hvd"), None)
        self.plain = Spec("plain", "plain", self.ours.python if self.ours else a.peer_python)
        self.hvd_args, self.ranks = a.hvd_args.split(), [int(x) for x in a.ranks.split(",")]

    def launch(self, part, number, spec, ranks, words, **opts):
        left, key = self.end - time.monotonic(), (spec.name, part, ranks)
        if self.failed.get(key, 0) >= 2 or left < 3:
            return
        busy, at = quiet(self.a.wait), place()
        with Launch(spec, ranks, words, hvd_args=self.hvd_args, **opts) as l:
            rows, why = l.wait(min(self.a.limit, left))
            if why:
                self.complain(spec, part, ranks, why, l.tail(), left)
        for r in rows:
            if r.get("ok") is False:
                self.bad = True
                note(f"WRONG RESULT: {spec.name} {r}")
            self.rows.append(dict(r, part=part, system=spec.name, round=number, busy=busy,
                                  place_ns=at))

    def complain(self, spec, part, ranks, why, tail, left):
        if "too long" in why and left < self.a.limit:
            note(f"{spec.name}, {part}, {ranks} ranks: cut short, the time is up")
            return
        key = spec.name, part, ranks
        self.failed[key] = self.failed.get(key, 0) + 1
        self.bad |= spec.kind == "hvd"
        note(f"{spec.name}, {part}, {ranks} ranks: {why}")
        for line in tail:
            note("    " + line)

    def part(self, name, seconds):
        """Rounds of one part, as many as fit; the time they took."""
        begin, longest = time.monotonic(), 0.0
        for number in range(self.a.rounds):
            start_s = time.monotonic()
            if number and start_s + longest > begin + seconds:
                break
            getattr(self, name)(number)
            took = time.monotonic() - start_s
            longest = max(longest, took)
            note(f"{name}: round {number + 1} in {took:.0f} s")
        return time.monotonic() - begin

    def turn(self, number, more=()):
        s = list(more) + self.systems
        k = number % max(1, len(s))
        return s[k:] + s[:k]

    def ops(self, number):
        words = ["ops.py", "--ops", self.a.ops, "--sizes", self.a.sizes, "--secs",
                 str(self.a.secs)]
        for n in self.ranks:
            for s in self.turn(number):
                self.launch("ops", number, s, n, words)

    def sparse(self, number):
        words = ["sparse.py", "--secs", str(self.a.secs)]
        for n in self.ranks:
            for s in self.turn(number):
                self.launch("ops", number, s, n, words)

    def step(self, number):
        words = ["step.py", "--models", self.a.models, "--secs", str(self.a.step_secs)]
        for n in self.ranks:
            for s in self.turn(number, [self.plain]):
                if s.kind != "mpi":
                    self.launch("step", number, s, n, words)

    def idle(self, number):
        for n in self.ranks:
            for s in self.turn(number):
                if s.name != "mpi-ucx":
                    self.launch("idle", number, s, n, ["idle.py"], bind=False)

    def start(self, number):
        what = ("true", "script", "first") + (("weight",) if number == 0 else ())
        for s in self.turn(number):
            if s.name == "mpi-ucx" or time.monotonic() > self.end:
                continue
            for row in start.run(s, self.ranks, what, self.hvd_args, self.a.wait):
                if row.get("why"):
                    note(f"{s.name}, start, {row['ranks']} ranks: {row['why']}")
                    self.bad |= s.kind == "hvd"
                self.rows.append(dict(row, part="start", round=number))

    def all(self):
        parts = self.a.parts.split(",")
        left, share = self.a.budget, sum(SHARES[p] for p in parts)
        for p in parts:
            left -= self.part(p, left * SHARES[p] / share)
            share -= SHARES[p]


def main():
    a = arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):       # leave no rank behind
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    run = Run(a)
    if not run.systems:
        note("nothing to measure")
        return 0
    run.all()
    print(f"# {', '.join(s.name for s in run.systems)}: {platform.machine()}, {os.cpu_count()} "
          f"CPUs, Linux {platform.release()}\n")
    busy = [r["busy"] for r in run.rows if r.get("busy") is not None]
    if busy:
        print(f"Machine before the launches: {100 * statistics.median(busy):.0f} % busy (median), "
              f"{100 * max(busy):.0f} % at worst. Above about 10 % the figures are not worth "
              "keeping.\n")
    sums = tables.show(run.rows, run.ours.name if run.ours else None)
    took = round(time.monotonic() - run.began, 1)
    print(f"{took:.0f} s")
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(ours=run.ours and run.ours.name, seconds=took, summary=sums,
                           systems={s.name: s.kind for s in run.systems}, rows=run.rows), f,
                      indent=1)
    return int(run.bad)


if __name__ == "__main__":
    sys.exit(main())
