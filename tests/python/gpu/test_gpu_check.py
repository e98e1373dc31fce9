"""python -m horovod.gpu_check: what it says without a GPU, and its parts on other devices."""
import os
import re
import subprocess
import sys

import pytest
import torch

from gpu import cases_device
from horovod.gpu_check import __main__ as gpu_check
from launch import Job


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so():
    done = subprocess.run([sys.executable, "-m", "horovod.gpu_check"], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == gpu_check.NO_GPU, done.stdout + done.stderr
    assert "no GPU that PyTorch can use: nothing was tried" in done.stdout
    for row in ("horovod ", "torch ", "CUDA driver ", "NCCL ", "way "):
        assert f"\n{row}" in f"\n{done.stdout}", done.stdout


def test_what_counts_as_passed():
    said = "[1,0]<stdout>:PASS orders: 20 rounds\n[1,1]<stdout>:PASS orders: 20 rounds\n"
    assert gpu_check.judge("orders", 2, 0, said)
    assert not gpu_check.judge("orders", 2, 1, said) and not gpu_check.judge("orders", 3, 0, said)
    assert gpu_check.judge("death", 2, 1, "PASS death: heard of rank 1 after 3 ms")
    assert not gpu_check.judge("death", 3, 1, "PASS death: heard of rank 2 after 3 ms")


def test_its_parts_on_a_late_device(ranks):
    ranks(2, cases_device.parts_of_the_check, {"HVD_TEST_DEVICE": "late"}, 180, kind="late")


def test_the_death_of_a_rank(tmp_path):
    script = ("import sys, torch, horovod.torch as hvd\n"
              "from horovod.gpu_check import worker\n"
              "hvd.init()\n"
              "print('\\n'.join(worker.death(torch.device('cpu'), sys.argv[1])))\n")
    with Job(3, [sys.executable, "-c", script, os.path.join(tmp_path, "clock")]) as job:
        assert job.wait()[2] == -9
        for rank in (0, 1):
            assert re.search(r"heard of rank 2 after \d+ ms: .*rank 2", job.output(rank)), \
                job.everything()
