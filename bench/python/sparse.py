#!/usr/bin/env python3
"""One rank of the benchmark of sparse and embedding models: rows that are unevenly spread over
the ranks, a little differently in each step.

    sparse.py --system hvd|gloo|mpi --board FILE [--out FILE] [--lookups n,n] [--secs S]

Started by compare.py (--parts sparse).  A step looks up so many rows of 64 floats per rank:

    indices     alltoall of int64: each rank asks the owners of its rows
    rows        alltoall of float32: the owners answer, the same numbers the other way
    gather      allgather of int64 indices and of their float32 gradients, as a sparse allreduce

What a rank gets is not known to it beforehand.  hvd.alltoall and hvd.allgather find out by
themselves; with MPI and gloo a program sends the counts first, and gloo, which gathers equal
parts only, pads.  Their output buffers are made once, which is to their favour.  "bytes" is what
one rank brings.  Every result is checked once.
"""

import torch

import ops
from common import System, emit, rank_arguments

WIDTH = 64                              # floats of a row
PLANS = 16                              # steps until the sizes repeat


def plans(size, lookups):
    """[step][from][to]: rows; the same on all ranks.  From step to step a few percent move."""
    g = torch.Generator().manual_seed(7)
    share = torch.rand(size, size, generator=g) + 0.5
    made = []
    for _ in range(PLANS):
        share = share * (1 + 0.05 * (torch.rand(size, size, generator=g) - 0.5))
        rows = (share / share.sum(1, keepdim=True) * lookups).long()
        made.append(rows.tolist())
    return made


class Hvd:
    def __init__(self, s, most):
        self.hvd = s.hvd

    def alltoall(self, t, splits, name):
        return self.hvd.alltoall(t, splits, name=name)[0]

    def allgather(self, t, name):
        return self.hvd.allgather(t, name=name)


class Gloo:
    def __init__(self, s, most):
        self.dist, self.size = s.dist, s.size
        self.got = torch.empty(s.size, dtype=torch.int64)
        self.out = {d: torch.empty(most * s.size, w, dtype=d) for d, w in
                    ((torch.int64, 1), (torch.float32, WIDTH))}
        self.pad = {d: torch.empty(most, w, dtype=d) for d, w in
                    ((torch.int64, 1), (torch.float32, WIDTH))}

    def alltoall(self, t, splits, name):
        self.dist.all_to_all_single(self.got, torch.tensor(splits))
        got = self.got.tolist()
        out = self.out[t.dtype][:sum(got)]
        self.dist.all_to_all_single(out, t, got, splits)
        return out

    def allgather(self, t, name):
        gather = getattr(self.dist, "all_gather_single", None) or \
            self.dist.all_gather_into_tensor
        gather(self.got, torch.tensor([t.shape[0]]))
        got = self.got.tolist()
        most = max(got)
        pad, out = self.pad[t.dtype][:most], self.out[t.dtype][:most * self.size]
        pad[:t.shape[0]] = t
        gather(out, pad)
        return torch.cat([out[q * most:q * most + n] for q, n in enumerate(got)])


class Mpi:
    def __init__(self, s, most):
        self.comm, self.MPI = s.comm, s.MPI
        self.got = torch.empty(s.size, dtype=torch.int64)
        self.out = {d: torch.empty(most * s.size, w, dtype=d) for d, w in
                    ((torch.int64, 1), (torch.float32, WIDTH))}
        self.types = {torch.int64: (s.MPI.INT64_T, 1), torch.float32: (s.MPI.FLOAT, WIDTH)}

    def alltoall(self, t, splits, name):
        kind, width = self.types[t.dtype]
        self.comm.Alltoall(torch.tensor(splits).numpy(), self.got.numpy())
        got = self.got.tolist()
        out = self.out[t.dtype][:sum(got)]
        self.comm.Alltoallv([t.numpy(), [n * width for n in splits], kind],
                            [out.numpy(), [n * width for n in got], kind])
        return out

    def allgather(self, t, name):
        kind, width = self.types[t.dtype]
        self.comm.Allgather(torch.tensor([t.shape[0]]).numpy(), self.got.numpy())
        got = self.got.tolist()
        out = self.out[t.dtype][:sum(got)]
        self.comm.Allgatherv([t.numpy(), kind], [out.numpy(), [n * width for n in got], kind])
        return out


class Case:
    """As ops.Case: call, inputs to rewrite; each call takes the sizes of the next step."""

    def __init__(self, s, calls, what, lookups):
        self.s, self.calls, self.what, self.step = s, calls, what, 0
        self.plans = plans(s.size, lookups)
        self.name = f"sparse.{what}.{lookups}"
        most = max(max(sum(p[r]) for r in range(s.size)) for p in self.plans)
        back = max(max(sum(q[r] for q in p) for r in range(s.size)) for p in self.plans)
        self.indices = torch.zeros(max(most, back), 1, dtype=torch.int64)
        self.rows = torch.zeros(max(most, back), WIDTH)
        self.inputs = [self.indices, self.rows]

    def fill(self, i):
        self.indices.fill_(i & 7)
        self.rows.fill_(i & 7)

    def call(self):
        plan, r = self.plans[self.step % PLANS], self.s.rank
        self.step += 1
        sent, got = plan[r], [q[r] for q in plan]
        if self.what == "indices":
            return self.calls.alltoall(self.indices[:sum(sent)], sent, self.name)
        if self.what == "rows":
            return self.calls.alltoall(self.rows[:sum(got)], got, self.name)
        n = sum(sent)
        return (self.calls.allgather(self.indices[:n], self.name + ".i"),
                self.calls.allgather(self.rows[:n], self.name + ".v"))

    def is_right(self):
        """With the rank in every element, each part has a value of its own."""
        plan, r, n = self.plans[self.step % PLANS], self.s.rank, self.s.size
        for t in self.inputs:
            t.fill_(r + 1)
        result = self.call()
        if self.what == "gather":
            want = torch.cat([torch.full((sum(plan[q]),), q + 1) for q in range(n)])
            return all(torch.equal(x[:, 0].long(), want) for x in result)
        parts = [plan[q][r] if self.what == "indices" else plan[r][q] for q in range(n)]
        want = torch.cat([torch.full((k,), q + 1) for q, k in enumerate(parts)])
        return torch.equal(result[:, 0].long(), want)


def measure(s, calls, what, lookups, secs, most):
    case = Case(s, calls, what, lookups)
    right = [case.is_right() for _ in range(3)]
    nbytes = lookups * {"indices": 8, "rows": 4 * WIDTH, "gather": 8 + 4 * WIDTH}[what]
    starts, ends = ops.take_samples(s, case, ops.sample_count(s, case, nbytes, secs, most), secs)
    s.board.publish(starts + ends)
    spans = sorted(s.board.spans(len(starts)))
    s.board.barrier()
    s.board.publish([int(all(right))])
    ok = all(s.board.stamps(r, 1)[0] for r in range(s.size))
    s.board.barrier()
    return dict(op=f"sparse {what}", ranks=s.size, bytes=nbytes, iters=len(starts),
                floor_us=round(spans[0] * 1e6, 2),
                median_us=round(spans[len(spans) // 2] * 1e6, 2), ok=bool(ok))


def main():
    p = rank_arguments(0.08, "row of the table")
    p.add_argument("--lookups", default="64,2048,32768")
    p.add_argument("--most", type=int, default=2000, help="most samples per row")
    a = p.parse_args()
    torch.set_num_threads(1)
    s = System(a.system, a.board).init()
    counts = [int(x) for x in a.lookups.split(",")]
    calls = {"hvd": Hvd, "gloo": Gloo, "mpi": Mpi}[s.kind](s, 2 * max(counts))
    s.board.barrier()
    for what in ("indices", "rows", "gather"):
        for n in counts:
            row = measure(s, calls, what, n, a.secs, a.most)
            if s.rank == 0:
                emit(a.out, **row)
    s.board.barrier()
    s.done()


if __name__ == "__main__":
    main()
