"""Jobs that mpirun starts.

Imported by: horovod.runner; programs written for Horovod 0.28.
"""
import shlex
import subprocess
from typing import Any, Optional, Sequence

from horovod.runner import _native
from horovod.runner.gloo_run import _settings_options


def _version(env: Optional[dict] = None) -> str:
    try:
        done = subprocess.run(["mpirun", "--version"], env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def is_open_mpi(env: Optional[dict] = None) -> bool:
    """Whether mpirun is of Open MPI."""
    text = _version(env)
    return ("Open MPI" in text or "OpenRTE" in text) and "IBM Spectrum MPI" not in text


def is_spectrum_mpi(env: Optional[dict] = None) -> bool:
    """Whether mpirun is of IBM Spectrum MPI."""
    return "IBM Spectrum MPI" in _version(env)


def is_mpich(env: Optional[dict] = None) -> bool:
    """Whether mpirun is of MPICH."""
    text = _version(env)
    return ("MPICH" in text or "HYDRA" in text) and "Intel(R) MPI" not in text


def is_intel_mpi(env: Optional[dict] = None) -> bool:
    """Whether mpirun is of Intel MPI."""
    return "Intel(R) MPI" in _version(env)


def mpi_available(env: Optional[dict] = None) -> bool:
    """Whether mpirun of a known MPI is on PATH."""
    text = _version(env)
    return any(name in text for name in ("Open MPI", "OpenRTE", "IBM Spectrum MPI", "MPICH",
                                         "HYDRA", "Intel(R) MPI"))


def mpi_run(settings: Any, nics: Optional[Sequence[str]], env: dict, command: Any,
            stdout: Any = None, stderr: Any = None) -> None:
    """Runs a command with mpirun.  RuntimeError when it fails."""
    if env is not None and type(env) is not dict:
        raise Exception(f"env argument must be a dict, not {type(env)}: {env}")
    words = _settings_options(settings, nics) + ["--mpi"]
    if settings.extra_mpi_args:
        words.append(f"--mpi-args={settings.extra_mpi_args}")
    if settings.binding_args:
        words.append(f"--binding-args={settings.binding_args}")
    if settings.tcp_flag:
        words.append("--tcp")
    outcome = _native.execute(words, shlex.split(command) if isinstance(command, str)
                              else list(command), env=env, stdout=stdout, stderr=stderr)
    if outcome.code != 0:
        raise RuntimeError(f"mpirun failed with exit code {outcome.code}")
