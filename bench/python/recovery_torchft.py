"""A worker of bench/recovery: the same training under torchft's Manager."""
import os
import sys
import time
from datetime import timedelta

import torch
from torchft import Manager, ProcessGroupGloo


def main():
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(500, 500) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    batch = torch.randn(8, 500)
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), min_replica_size=1,
        load_state_dict=lambda s: (model.load_state_dict(s["model"]),
                                   optimizer.load_state_dict(s["optimizer"])),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=sys.argv[2], store_addr="127.0.0.1", store_port=store.port, rank=0,
        world_size=1, timeout=timedelta(seconds=5), quorum_timeout=timedelta(seconds=30))
    journal = os.open(os.path.join(sys.argv[1], "journal"), os.O_WRONLY)
    slow = os.open(os.path.join(sys.argv[1], "slow"), os.O_RDONLY)
    members, turn = None, 0
    while True:
        manager.start_quorum()
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        for work in [manager.allreduce(p.grad) for p in model.parameters()]:
            work.wait()
        if not manager.should_commit():
            continue
        optimizer.step()
        now = manager.num_participants(), manager._quorum_id
        if now != members:
            members, turn = now, turn + 1
        os.write(journal, f"step {time.monotonic()} {os.getpid()} {turn} {now[0]}\n".encode())
        if os.pread(slow, 1, 0) == b"\1":
            time.sleep(0.02)


main()
