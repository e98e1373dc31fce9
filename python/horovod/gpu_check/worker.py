"""What one rank of ``python -m horovod.gpu_check`` does, part by part.

Every rank takes the GPU of its local rank, or shares them if there are fewer.  A part returns
lines to show; it raises if something is wrong.
"""
import os
import signal
import sys
import time
from typing import Any, Callable, List

import torch

import horovod.torch as hvd
from horovod.common.exceptions import HorovodInternalError

DTYPES = (torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
          torch.float64)
ROUNDS = 20
SIZES = (1 << 12, 1 << 20, 1 << 26)     # bytes
DEATH_S = 10.0


def _device() -> torch.device:
    index = hvd.local_rank() % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _same(what: str, got: torch.Tensor, want: torch.Tensor) -> None:
    tolerance = 0.0 if not want.is_floating_point() else \
        1e-2 if want.element_size() == 2 else 1e-5
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance,
                               msg=lambda text: f"{what}: {text}")


def operations(device: torch.device) -> List[str]:
    """Every operation gives what it gives on the CPU."""
    rank, size = hvd.rank(), hvd.size()
    calls: List[Any] = [
        ("sum", lambda t: hvd.allreduce(t, op=hvd.Sum)),
        ("average", lambda t: hvd.allreduce(t, op=hvd.Average)),
        ("max", lambda t: hvd.allreduce(t, op=hvd.Max)),
        ("scaled", lambda t: hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5,
                                           postscale_factor=2.0)),
        ("group", lambda t: torch.cat(hvd.grouped_allreduce([t, t + 1], op=hvd.Sum))),
        ("allgather", lambda t: hvd.allgather(t[:rank + 1])),
        ("broadcast", lambda t: hvd.broadcast(t, size - 1)),
        ("alltoall", hvd.alltoall),
        ("reducescatter", lambda t: hvd.reducescatter(t, op=hvd.Sum))]
    for dtype in DTYPES:
        values = (torch.arange(size * 12, device="cpu") % 7 + rank).to(dtype)
        for name, call in calls:
            _same(f"{name} of {dtype}", call(values.to(device)), call(values))
    return [f"{len(calls)} operations of {len(DTYPES)} types"]


def _busy(tensor: torch.Tensor) -> None:
    """Keeps the current stream from coming to the next operation at once."""
    for _ in range(10):
        tensor @ tensor


def orders(device: torch.device) -> List[str]:
    """Produced on one stream and used on another, without a wait of the script."""
    producer, consumer = torch.cuda.Stream(device), torch.cuda.Stream(device)
    load = torch.ones(512, 512, device=device)
    values = torch.zeros(1 << 16, device=device)
    torch.cuda.current_stream(device).synchronize()
    for step in range(ROUNDS):
        with torch.cuda.stream(producer):
            _busy(load)
            values.fill_(float(step + hvd.rank()))
            handle = hvd.allreduce_async(values, op=hvd.Sum)
        with torch.cuda.stream(consumer):
            result = hvd.synchronize(handle) * 2
        consumer.synchronize()
        want = 2.0 * sum(step + r for r in range(hvd.size()))
        if not bool((result.cpu() == want).all()):
            raise AssertionError(f"round {step}: {result[:4].tolist()} instead of {want}")
    return [f"{ROUNDS} rounds"]


def optimizer(device: torch.device) -> List[str]:
    """A training on the GPU ends with the same weights on all ranks."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(),
                                torch.nn.Linear(128, 8)).to(device)
    sgd = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01),
                                   named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    torch.manual_seed(hvd.rank())
    for _ in range(ROUNDS):
        sgd.zero_grad()
        model(torch.randn(16, 64, device=device)).square().mean().backward()
        sgd.step()
    for name, p in model.named_parameters():
        flat = p.detach().reshape(1, -1)
        if not bool((hvd.allgather(flat) == flat).all()):
            raise AssertionError(f"{name} differs between ranks")
    return [f"{ROUNDS} steps"]


def _median_us(call: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(ROUNDS + 3):
        hvd.barrier()
        begin = time.perf_counter()
        call()
        torch.cuda.current_stream(device).synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times[3:])[ROUNDS // 2] * 1e6


def speed(device: torch.device) -> List[str]:
    """An allreduce of ours, and NCCL's by torch.distributed, in turns."""
    import torch.distributed as dist
    port = hvd.broadcast_object(_free_port() if hvd.rank() == 0 else None, 0)
    apart = hvd.local_size() <= torch.cuda.device_count()
    if apart:                           # NCCL wants a GPU for each rank
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}",
                                rank=hvd.rank(), world_size=hvd.size())
    lines = []
    for nbytes in SIZES:
        tensor = torch.ones(nbytes // 4, device=device)
        ours = _median_us(lambda: hvd.allreduce_(tensor, op=hvd.Max, name="speed"), device)
        line = f"{nbytes:>9} bytes: {ours:9.1f} us, {nbytes / ours / 1e3:7.2f} GB/s"
        if apart:
            theirs = _median_us(lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX), device)
            line += f"; torch.distributed {theirs:9.1f} us, ratio {theirs / ours:.2f}"
        lines.append(line)
    if apart:
        dist.destroy_process_group()
    return lines


def _free_port() -> int:
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def death(device: torch.device, clock: str) -> List[str]:
    """The last rank kills itself in the middle; the others hear which one it was."""
    values = torch.ones(1 << 20, device=device)
    hvd.allreduce_(values, op=hvd.Max, name="before")
    victim = hvd.size() - 1
    if hvd.rank() == victim:
        with open(clock, "w") as file:
            file.write(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        hvd.allreduce_(values, op=hvd.Max, name="after")
    except HorovodInternalError as e:
        with open(clock) as file:
            waited = time.monotonic() - float(file.read())
        if f"rank {victim}" not in str(e) or waited > DEATH_S:
            raise AssertionError(f"after {waited:.2f} s: {e}") from None
        return [f"heard of rank {victim} after {waited * 1e3:.0f} ms: {e}"]
    raise AssertionError(f"rank {victim} is dead, and the operation succeeded")


def main(part: str, clock: str) -> None:
    hvd.init()
    arguments = [_device()] + ([clock] if part == "death" else [])
    lines = {"operations": operations, "orders": orders, "optimizer": optimizer,
             "speed": speed, "death": death}[part](*arguments)       # type: ignore
    print(f"PASS {part}: {'; '.join(lines)}", flush=True)
    if part != "death":
        hvd.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
