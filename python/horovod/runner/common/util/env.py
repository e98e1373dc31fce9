"""Variables that say who a process is, and which of them travel.

Imported by: horovod.ray, horovod.runner, horovod.spark; programs written for Horovod 0.28.
"""
import os
import re

from horovod import _core

KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"
IGNORE_REGEXES = ("BASH_FUNC_.*", "OLDPWD", "_HOROVOD_SECRET_KEY.*", ".*CUDA_VISIBLE_DEVICES.*")

# Variables that say who a process is; all other HOROVOD_* are the user's wishes.  Beside the
# rows of src/base/config.def: what a launcher decides, and what horovod.runner.run_task is given.
IDENTITY = frozenset("HOROVOD_" + name for name in (
    *_core.IDENTITY, "CONTROLLER", "CPU_OPERATIONS",
    "RUN_DIR", "RUN_FUNC_FD", "RUN_RESULT_FD", "RUN_PARENT_FD"))


def is_exportable(name: str) -> bool:
    """Whether a variable of the launcher goes to workers on other hosts."""
    return not any(re.fullmatch(r, name) for r in IGNORE_REGEXES)


def get_env_rank_and_size() -> tuple[int, int]:
    """Rank and size of this process, from the variables of whoever started it."""
    for rank_name, size_name in (("HOROVOD_RANK", "HOROVOD_SIZE"),
                                 ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
                                 ("PMI_RANK", "PMI_SIZE")):
        rank, size = os.environ.get(rank_name), os.environ.get(size_name)
        if rank is not None and size is not None:
            return int(rank), int(size)
        if rank is not None or size is not None:
            raise RuntimeError(f"Could not determine process rank and size: only one of "
                               f"{rank_name} and {size_name} found in environment")
    return 0, 1


def is_kubeflow_mpi() -> bool:
    """Whether Kubeflow's MPI operator has prepared this pod."""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC
