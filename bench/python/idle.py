#!/usr/bin/env python3
"""One rank of the benchmark of doing nothing: what does a job cost while it has no work?

    idle.py --system hvd|gloo|mpi --board FILE [--out FILE] [--secs S]

1. rank 0 multiplies matrices with two threads, nobody has started the library; the others sleep;
2. init and one allreduce, then all ranks sleep: CPU time, context switches and threads of each;
3. rank 0 multiplies again, the others sleep: how much slower than in 1?
"""
import resource
import time

import torch

from common import System, emit, rank_arguments


def products_per_second(secs, n=512):
    torch.set_num_threads(2)
    a, b, out = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    for _ in range(5):
        torch.mm(a, b, out=out)
    start, count = time.monotonic(), 0
    while time.monotonic() - start < secs:
        torch.mm(a, b, out=out)
        count += 1
    rate = count / (time.monotonic() - start)
    torch.set_num_threads(1)
    return rate


def alone(s, secs):
    """The rate of rank 0 while the others sleep."""
    rate = products_per_second(secs) if s.rank == 0 else 0.0
    s.board.lazy_barrier()
    return rate


def use_while_asleep(secs):
    """CPU share in 1e-9, switches per second, threads, peak KiB."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    cpu, start = time.process_time(), time.monotonic()
    time.sleep(secs)
    took, used = time.monotonic() - start, time.process_time() - cpu
    after = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/self/status") as f:
        threads = next(int(x.split()[1]) for x in f if x.startswith("Threads"))
    return [int(used / took * 1e9), int((after.ru_nvcsw - usage.ru_nvcsw) / took), threads,
            after.ru_maxrss]


def main():
    p = rank_arguments(3.0, "measurement")
    a = p.parse_args()
    torch.set_num_threads(1)
    s = System(a.system, a.board)
    s.board.lazy_barrier()
    before = alone(s, a.secs / 2)
    s.init()
    s.allreduce_(torch.ones(1), "idle")
    s.board.lazy_barrier()
    time.sleep(0.5)
    mine = use_while_asleep(a.secs)
    s.board.lazy_barrier()
    s.board.publish(mine)
    after = alone(s, a.secs / 2)
    if s.rank == 0:
        ranks = [s.board.stamps(r, 4) for r in range(s.size)]
        cpu = [round(x[0] * 1e-7, 3) for x in ranks]
        emit(a.out, ranks=s.size, cpu_percent=cpu, cpu_percent_max=max(cpu),
             switches_per_s=max(x[1] for x in ranks), threads=max(x[2] for x in ranks),
             peak_rss_mib=max(x[3] for x in ranks) // 1024, mm_per_s_before=round(before, 1),
             mm_per_s_after=round(after, 1),
             slowdown_percent=round((before / after - 1) * 100, 2))
    s.board.lazy_barrier()
    s.done()


if __name__ == "__main__":
    main()
