#!/usr/bin/env python3
"""One rank of the benchmark of operations, called from Python on torch CPU float32 tensors.

    ops.py --system hvd|gloo|mpi --board FILE [--out FILE] [--ops a,b] [--sizes n,n] [--secs S]

Started by compare.py, which makes the board.  Rank 0 writes one JSON line per operation and size:
op, ranks, bytes, iters, floor_us, median_us, p99_us, loop_us, ok.

"bytes" is the full vector of one rank at its widest: input of allreduce, broadcast, alltoall and
reducescatter, output of allgather.  A sample: every rank rewrites its input, passes the board's
barrier, notes the start, calls, notes the end; it counts from the latest start to the latest end.
loop_us: calls back to back.  Every result is checked once per size, with small integers.
"""
import gc
import time

import torch

from common import System, emit, rank_arguments

GROUP, MEMBER = 100, 4096               # grouped: 100 tensors of 4 KiB
OPS = ["allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "grouped"]


class Hvd:
    """The operations of one system: each takes its tensors and returns a call without arguments.
    Where the API returns a new tensor, the call does."""

    def __init__(self, s):
        self.hvd, self.Sum = s.hvd, s.hvd.Sum

    def allreduce(self, t, name):
        return lambda: self.hvd.allreduce_(t, name=name, op=self.Sum)

    def grouped(self, ts, name):
        return lambda: self.hvd.grouped_allreduce_(ts, name=name, op=self.Sum)

    def broadcast(self, t, name):
        return lambda: self.hvd.broadcast_(t, 0, name=name)

    def allgather(self, t, out, name):
        return lambda: self.hvd.allgather(t, name=name)

    def alltoall(self, t, out, name):
        return lambda: self.hvd.alltoall(t, name=name)

    def reducescatter(self, t, out, name):
        return lambda: self.hvd.reducescatter(t, name=name, op=self.Sum)


class Gloo:
    def __init__(self, s):
        self.dist = s.dist

    def either(self, *names):
        return next(getattr(self.dist, n) for n in names if hasattr(self.dist, n))

    def allreduce(self, t, name):
        return lambda: self.dist.all_reduce(t)

    def grouped(self, ts, name):
        def call():
            for work in [self.dist.all_reduce(t, async_op=True) for t in ts]:
                work.wait()
        return call

    def broadcast(self, t, name):
        return lambda: self.dist.broadcast(t, 0)

    def allgather(self, t, out, name):
        gather = self.either("all_gather_single", "all_gather_into_tensor")
        return lambda: gather(out, t)

    def alltoall(self, t, out, name):
        return lambda: self.dist.all_to_all_single(out, t)

    def reducescatter(self, t, out, name):
        scatter = self.either("reduce_scatter_single", "reduce_scatter_tensor")
        return lambda: scatter(out, t)


class Mpi:
    def __init__(self, s):
        self.comm, self.in_place, self.type = s.comm, s.MPI.IN_PLACE, s.MPI.FLOAT

    def view(self, t):
        return [t.numpy(), self.type]

    def allreduce(self, t, name):
        view = self.view(t)
        return lambda: self.comm.Allreduce(self.in_place, view)

    def grouped(self, ts, name):
        calls = [self.allreduce(t, name) for t in ts]

        def call():
            for one in calls:
                one()
        return call

    def broadcast(self, t, name):
        view = self.view(t)
        return lambda: self.comm.Bcast(view, 0)

    def allgather(self, t, out, name):
        a, b = self.view(t), self.view(out)
        return lambda: self.comm.Allgather(a, b)

    def alltoall(self, t, out, name):
        a, b = self.view(t), self.view(out)
        return lambda: self.comm.Alltoall(a, b)

    def reducescatter(self, t, out, name):
        a, b = self.view(t), self.view(out)
        return lambda: self.comm.Reduce_scatter_block(a, b)


def value(rank, count, start=0):
    """Small integers: sums are exact, whatever the order."""
    return ((torch.arange(start, start + count) * 7 + rank * 13) % 101).float()


class Case:
    """One operation of one size: call, inputs to rewrite, result and what it should be."""

    def __init__(self, s, calls, op, nbytes):
        self.s, self.op, self.count = s, op, nbytes // 4
        self.part = self.count // s.size
        name = f"{op}.{nbytes}"
        if op == "grouped":
            self.inputs = [torch.empty(MEMBER // 4) for _ in range(GROUP)]
            self.call = calls.grouped(self.inputs, name)
        elif op in ("allreduce", "broadcast"):
            self.inputs = [torch.empty(self.count)]
            self.call = getattr(calls, op)(self.inputs[0], name)
        else:
            whole = self.part * s.size
            sizes = {"allgather": (self.part, whole), "alltoall": (whole, whole),
                     "reducescatter": (whole, self.part)}[op]
            self.inputs, self.out = [torch.empty(sizes[0])], torch.empty(sizes[1])
            self.call = getattr(calls, op)(self.inputs[0], self.out, name)

    def result(self, returned):
        if self.op == "grouped":
            return torch.cat(self.inputs)
        if self.op in ("allreduce", "broadcast"):
            return self.inputs[0]
        if self.s.kind != "hvd":
            return self.out
        return returned[0] if isinstance(returned, tuple) else returned

    def expected(self):
        every, part, rank = range(self.s.size), self.part, self.s.rank
        if self.op == "grouped":
            return sum(value(q, MEMBER // 4) for q in every).repeat(GROUP)
        if self.op == "allreduce":
            return sum(value(q, self.count) for q in every)
        if self.op == "broadcast":
            return value(0, self.count)
        if self.op == "allgather":
            return torch.cat([value(q, part) for q in every])
        if self.op == "alltoall":
            return torch.cat([value(q, part, part * rank) for q in every])
        return sum(value(q, part, part * rank) for q in every)

    def fill(self, i):
        for t in self.inputs:
            t.fill_(i & 7)


def check(s, case):
    """(offered by every rank's system, right on every rank)"""
    for t in case.inputs:
        t.copy_(value(s.rank, t.numel()))
    try:
        got, offered = case.result(case.call()), 1
    except (AttributeError, NotImplementedError):
        got, offered = None, 0
    s.board.publish([int(offered and torch.equal(got, case.expected())), offered])
    both = [s.board.stamps(r, 2) for r in range(s.size)]
    s.board.barrier()
    return all(x[1] for x in both), all(x[0] for x in both)


def sample_count(s, case, nbytes, secs, most):
    """As many as fit in the time; rank 0 decides."""
    for i in range(6 if nbytes <= 1 << 20 else 1):
        case.fill(i), s.board.barrier(), case.call()
    s.board.barrier()
    start, probes = time.monotonic_ns(), 10 if nbytes <= 1 << 16 else 2
    for i in range(probes):
        case.fill(i), s.board.barrier(), case.call()
    each = max(1, time.monotonic_ns() - start) / probes * 1e-9
    return s.board.agree(max(3, min(most, int(secs / each))))


def take_samples(s, case, count, secs):
    """Starts and ends; rank 0 ends a measurement that takes too long."""
    board, clock, call = s.board, time.monotonic_ns, case.call
    starts, ends = [], []
    limit = clock() + int(max(1.0, 5 * secs) * 1e9)
    gc.disable()
    for i in range(count):
        case.fill(i)
        if s.rank == 0:
            board.words[board.stop] = i >= 3 and clock() > limit
        board.barrier()
        if board.words[board.stop]:
            break
        start = clock()
        call()
        end = clock()
        starts.append(start), ends.append(end)
    gc.enable()
    return starts, ends


def loop_us(s, case, count):
    count = s.board.agree(count)
    start = time.monotonic_ns()
    for _ in range(count):
        case.call()
    s.board.barrier()
    took = time.monotonic_ns() - start
    s.board.barrier()
    return took / count / 1000


def measure(s, calls, op, nbytes, secs, most):
    """One row (empty on other ranks than 0), or None when the operation is not offered."""
    case = Case(s, calls, op, nbytes)
    offered, ok = check(s, case)
    if not offered:
        return None
    starts, ends = take_samples(s, case, sample_count(s, case, nbytes, secs, most), secs)
    count = len(starts)
    s.board.publish(starts + ends)
    spans = sorted(s.board.spans(count))
    s.board.barrier()
    loop = loop_us(s, case, max(2, min(count // 2, int(secs / 2 / spans[count // 2]))))
    if s.rank != 0:
        return {}
    return dict(op=op, ranks=s.size, bytes=nbytes, iters=count,
                floor_us=round(spans[0] * 1e6, 2), median_us=round(spans[count // 2] * 1e6, 2),
                p99_us=round(spans[min(count - 1, int(count * 0.99))] * 1e6, 2),
                loop_us=round(loop, 2), ok=bool(ok))


def main():
    p = rank_arguments(0.08, "operation and size")
    p.add_argument("--ops", default=",".join(OPS))
    p.add_argument("--sizes", default="4,1024,16384,65536,262144,1048576,4194304,16777216,67108864")
    p.add_argument("--most", type=int, default=2000, help="most samples per operation and size")
    a = p.parse_args()
    torch.set_num_threads(1)
    s = System(a.system, a.board).init()
    calls = {"hvd": Hvd, "gloo": Gloo, "mpi": Mpi}[s.kind](s)
    s.board.barrier()
    for op in a.ops.split(","):
        sizes = [GROUP * MEMBER] if op == "grouped" else [int(x) for x in a.sizes.split(",")]
        for n in sizes:
            if op in ("allgather", "alltoall", "reducescatter") and n // 4 < s.size:
                continue
            row = measure(s, calls, op, n, a.secs, a.most)
            if s.rank == 0:
                emit(a.out, **(row or dict(op=op, ranks=s.size, bytes=n, missing=True)))
            if row is None:
                break
    s.board.barrier()
    s.done()


if __name__ == "__main__":
    main()
