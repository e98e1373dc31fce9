"""What Horovod finds of GPUs here, and whether it works: operations, orders, speed, a death.

    python -m horovod.gpu_check             # about a minute
    python -m horovod.gpu_check --report    # says what is there, tries nothing

Exit code 0: everything passed, 1: something failed, 2: there is no GPU to try it on.
"""
import argparse
import os
import platform
import subprocess
import sys
import tempfile
from typing import List, Optional, Tuple

PARTS = ("operations", "orders", "optimizer", "speed", "death")
LIMIT_S = 300                   # of one part; a hang is a finding, too
NO_GPU = 2


def described() -> List[Tuple[str, str]]:
    """What a report needs to say."""
    import horovod
    from horovod.common import gpu
    found = gpu.libraries()
    rows = [("horovod", horovod.__version__), ("python", platform.python_version()),
            ("system", platform.platform()), ("way", found.backend),
            ("CUDA driver", found.driver or "none"),
            ("NCCL", f"{found.nccl_version} {found.nccl}" if found.nccl_version else "none")]
    if found.reason:
        rows.append(("why not more", found.reason))
    rows += [(name, value) for name, value in sorted(os.environ.items())
             if name.startswith(("NCCL_", "CUDA_", "HOROVOD_GPU", "HOROVOD_NUM_NCCL"))]
    return rows + _of_torch()


def _of_torch() -> List[Tuple[str, str]]:
    try:
        import torch
    except ImportError as e:
        return [("torch", f"none: {e}")]
    rows = [("torch", f"{torch.__version__}, CUDA {torch.version.cuda or 'none'}")]
    for i in range(torch.cuda.device_count()):
        rows.append((f"GPU {i}", torch.cuda.get_device_name(i)))
    return rows


def gpu_count() -> int:
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _run(part: str, ranks: int) -> Tuple[bool, str]:
    """(passed, what the ranks have said)"""
    from horovod.runner._native import launcher
    with tempfile.TemporaryDirectory(prefix="horovod-gpu-check-") as folder:
        command = [launcher(), "-np", str(ranks), sys.executable, "-m",
                   "horovod.gpu_check.worker", part, os.path.join(folder, "clock")]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        except subprocess.TimeoutExpired as e:
            said = e.stdout.decode(errors="replace") if isinstance(e.stdout, bytes) else ""
            return False, f"{said}\nnot finished in {LIMIT_S} s"
    said = done.stdout + done.stderr
    return judge(part, ranks, done.returncode, said), said


def judge(part: str, ranks: int, code: int, said: str) -> bool:
    """Every rank says PASS; one of ``death`` is killed, which horovodrun reports."""
    passed = said.count(f"PASS {part}")
    return passed == ranks - 1 if part == "death" else code == 0 and passed == ranks


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m horovod.gpu_check",
                                     description="Tries Horovod with the GPUs of this machine.")
    parser.add_argument("--report", action="store_true", help="say what is there, try nothing")
    parser.add_argument("-np", type=int, default=0, help="ranks; as many as GPUs, at least 2")
    options = parser.parse_args(arguments)
    for name, value in described():
        print(f"{name:14} {value}")
    count = gpu_count()
    if count == 0:
        print("\nno GPU that PyTorch can use: nothing was tried")
        return NO_GPU
    if options.report:
        return 0
    ranks, failed = options.np or max(2, min(8, count)), []
    print(f"\n{ranks} ranks on {count} GPUs", flush=True)
    for part in PARTS:
        passed, said = _run(part, ranks)
        print(f"\n{'PASS' if passed else 'FAIL'} {part}\n{said.strip()}", flush=True)
        if not passed:
            failed.append(part)
    print(f"\nfailed: {', '.join(failed)}" if failed else "\neverything passed")
    print("For a report, send all of the above.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
