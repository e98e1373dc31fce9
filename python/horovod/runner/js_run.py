"""Jobs that jsrun of LSF starts.

Imported by: horovod.runner; programs written for Horovod 0.28.
"""
import os
import shlex
import shutil
import tempfile
from typing import Any, Optional, Sequence

from horovod.runner import _native
from horovod.runner.common.util.hosts import parse_hosts
from horovod.runner.gloo_run import _settings_options


def is_jsrun_installed() -> bool:
    """Whether jsrun is on PATH."""
    return shutil.which("jsrun") is not None


def js_run(settings: Any, nics: Optional[Sequence[str]], env: dict, command: Any,
           stdout: Any = None, stderr: Any = None) -> None:
    """Runs a command with jsrun.  RuntimeError when it fails."""
    outcome = _native.execute(_settings_options(settings, nics) + ["--jsrun"],
                              shlex.split(command) if isinstance(command, str)
                              else list(command), env=env, stdout=stdout, stderr=stderr)
    if outcome.code != 0:
        raise RuntimeError(f"jsrun failed with exit code {outcome.code}")


def generate_jsrun_rankfile(settings: Any, path: Optional[str] = None) -> str:
    """Writes the rankfile of the hosts of settings and returns its path."""
    if path is None:
        fd, path = tempfile.mkstemp()
        os.close(fd)
    cpus, rank = os.cpu_count() or 1, 0
    with open(path, "w") as file:
        file.write("overlapping_rs: allow\ncpu_index_using: logical\n")
        for host in parse_hosts(settings.hosts):
            file.write("\n")
            per_rank = max(1, cpus // host.slots)
            for slot in range(min(host.slots, settings.num_proc - rank)):
                first = slot * per_rank
                file.write(f"rank: {rank}: {{ hostname: {host.hostname}; cpu: "
                           f"{{{first}-{first + per_rank - 1}}} ; gpu: * ; mem: * }}\n")
                rank += 1
    if rank < settings.num_proc:
        raise ValueError(f"Not enough slots on the hosts to fulfill the {settings.num_proc} "
                         f"requested processes")
    return path
