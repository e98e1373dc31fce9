"""Life cycle and topology, the same for every framework."""
import atexit
import ctypes
import json
import os
import sys
import weakref
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from horovod import _core
from horovod.common import process_sets as _process_sets
from horovod.common import no_job, uncaught, where
from horovod.common.exceptions import HorovodInternalError, WorkerRetired
from horovod.common.process_sets import ProcessSet
from horovod.common.util import is_iterable

# Called with no argument after the job has gone: optimizers drop their plans here.
_on_shutdown: "weakref.WeakSet[Any]" = weakref.WeakSet()


class HorovodBasics:
    """``init``, ``shutdown``, ``rank``, ``size`` and their like."""

    def __init__(self, pkg_path: str, *args: str) -> None:
        self.Average = 0
        self.Sum = 1
        self.Adasum = 2
        self.Min = 3
        self.Max = 4
        self.Product = 5
        self._library: Optional[ctypes.CDLL] = None
        self._sets: List[ProcessSet] = []       # of the last init

    @property
    def MPI_LIB_CTYPES(self) -> ctypes.CDLL:
        """The C symbols ``horovod_*``, for code that calls them through ctypes."""
        if self._library is None:
            self._library = ctypes.CDLL(_core.__file__, mode=ctypes.RTLD_GLOBAL)
        return self._library

    # -- life cycle ---------------------------------------------------------------

    def init(self, comm: Any = None,
             process_sets: Union[None, str, Sequence[ProcessSet]] = None) -> None:
        """Joins the job this process was started for.

        Without a launcher this is a job of one process.  Safe to call again.  ``comm`` may
        be an mpi4py communicator, whose ranks then form the job.  ``process_sets`` is a
        list of sets, equal on all ranks, or ``"dynamic"`` to allow ``add_process_set``.
        """
        sets: List[ProcessSet] = []
        if isinstance(process_sets, str):
            if process_sets.lower() != "dynamic":
                raise ValueError(f"process_sets must be a list or 'dynamic', "
                                 f"not {process_sets!r}")
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        elif process_sets is not None:
            sets = list(process_sets)
        if comm is not None and not is_iterable(comm):
            _adopt_communicator(_process_sets._checked_comm(comm))
            _process_sets.global_process_set.mpi_comm = comm
        elif any(s.mpi_comm is not None for s in sets):
            raise NotImplementedError("process sets of MPI communicators need an MPI "
                                      "communicator as comm, too")
        ranks = _resolve(sets)
        where.install()
        uncaught.install()
        joins = not _core.is_initialized()
        elastic = os.environ.get("HOROVOD_ELASTIC") == "1"
        try:
            if elastic:             # which sets there can be is known when the size is
                _core.init([], bool(sets) or _process_sets.is_dynamic())
            else:
                _core.init(_without_duplicates(ranks), _process_sets.is_dynamic())
        except WorkerRetired as e:
            sys.stderr.write(f"horovod: {e}; this worker leaves with exit code 0\n")
            raise
        except HorovodInternalError as e:
            if e.status in ("MISMATCH", "VERSION", "UNSUPPORTED"):
                raise ValueError(str(e)) from None
            raise
        except ValueError as e:
            raise ValueError(f"{e}{_about_children()}") from None
        finally:
            if joins:       # the core has taken them out of the environment, Python has a copy
                for name in ("HOROVOD_KEY", "HOROVOD_KEY_FD", "HOROVOD_KEY_SOCKET"):
                    os.environ.pop(name, None)
        no_job.joined()
        atexit.unregister(self.shutdown)
        atexit.register(self.shutdown)
        self._sets = sets
        if elastic and joins:
            _process_sets._add_possible(sets)
        else:
            _process_sets._init_process_sets(sets)

    def _reset(self) -> None:
        """Leaves the job and joins its next generation, with the process sets of the last
        ``init`` as far as the new size has their ranks."""
        self.shutdown()
        _process_sets._forget_all()
        self.init(process_sets=self._sets)

    def shutdown(self) -> None:
        """Leaves the job; operations that are under way fail.  Safe at any time."""
        _core.shutdown()
        for listener in list(_on_shutdown):
            listener.forget()

    def abort(self, why: str = "hvd.abort was called") -> None:
        """Ends the job for all ranks: every operation, blocked or later, raises ``why``.

        May be called from any thread, also while a collective is blocked.
        """
        _core.abort(why)

    def is_initialized(self) -> bool:
        """Whether this process is in a job now."""
        return _core.is_initialized()

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Starts a timeline (Chrome trace); ``HOROVOD_TIMELINE`` must have been set,
        at least to ``DYNAMIC``, when the job began."""
        self._check()
        if "HOROVOD_TIMELINE" not in os.environ:
            raise ValueError("set the environment variable HOROVOD_TIMELINE to DYNAMIC "
                             "(or to a file) before hvd.init() to use start_timeline")
        _timeline(_core.timeline_start, file_path, mark_cycles)

    def stop_timeline(self) -> None:
        """Ends the timeline; the file is complete when this returns."""
        self._check()
        _timeline(_core.timeline_stop)

    # -- topology -----------------------------------------------------------------

    def size(self) -> int:
        """The number of processes of the job."""
        return self._asked(_core.size())

    def local_size(self) -> int:
        """The number of processes on this host."""
        return self._asked(_core.local_size())

    def cross_size(self) -> int:
        """The number of hosts that have a process of this local rank."""
        return self._asked(_core.cross_size())

    def rank(self) -> int:
        """The number of this process in the job, from 0."""
        return self._asked(_core.rank())

    def local_rank(self) -> int:
        """The number of this process on its host, from 0."""
        return self._asked(_core.local_rank())

    def cross_rank(self) -> int:
        """The position of this host among those with a process of this local rank."""
        return self._asked(_core.cross_rank())

    def is_homogeneous(self) -> bool:
        """Whether every host has the same number of processes."""
        return bool(self._asked(_core.is_homogeneous()))

    @staticmethod
    def _asked(answer: int) -> int:
        if answer < 0:
            raise ValueError(no_job.text())
        return answer

    def _check(self) -> None:
        self._asked(_core.rank())

    # -- what was built -----------------------------------------------------------

    def mpi_threads_supported(self) -> bool:
        """False: the collectives do not go over MPI."""
        self._check()
        return False

    def mpi_enabled(self) -> bool:
        """False: no collective goes over MPI, also under ``mpirun``."""
        return False

    def mpi_built(self) -> bool:
        """False: MPI may start jobs, and does nothing else."""
        return False

    def gloo_enabled(self) -> bool:
        """True: the collectives of this core take the place of Gloo's."""
        return True

    def gloo_built(self) -> bool:
        """True, as ``gloo_enabled``."""
        return True

    def nccl_built(self) -> int:
        """The version of the NCCL that would be used here, 21805 for 2.18.5; 0 without.
        Loads the library, no GPU is touched."""
        from horovod.common import gpu
        return gpu.nccl_version()

    def ddl_built(self) -> bool:
        """False: there is no DDL here."""
        return False

    def ccl_built(self) -> bool:
        """False: oneCCL is not used."""
        return False

    def cuda_built(self) -> bool:
        """Whether a CUDA driver was found here; nothing is compiled against CUDA."""
        from horovod.common import gpu
        return gpu.libraries().driver != ""

    def rocm_built(self) -> bool:
        """False: tensors of AMD GPUs pass through host memory."""
        return False

    # -- diagnostics and process sets ---------------------------------------------

    def stats(self) -> Dict[str, Any]:
        """What this process has done so far: operations, bytes, time, cache, fusion, and
        how long it waited for which peer."""
        return json.loads(_core.stats() or "{}")

    def _get_process_set_ids_and_ranks(self) -> Dict[int, List[int]]:
        return _core.process_sets()

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int:
        return _core.add_process_set(ranks)

    def _remove_process_set_impl(self, process_set_id: int) -> int:
        _core.remove_process_set(process_set_id)
        return process_set_id

    def _process_set_rank(self, process_set_id: int) -> int:
        return _core.process_set_rank(process_set_id)

    def _process_set_size(self, process_set_id: int) -> int:
        return _core.process_set_size(process_set_id)


def _timeline(call: Callable, *args: Any) -> None:
    try:
        call(*args)
    except HorovodInternalError as e:
        if e.scope != "OP":
            raise
        raise ValueError(str(e)) from None


def _about_children() -> str:
    """What to do in a process that multiprocessing has started: it is no rank of the job."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None:
        return ""
    return ("; this process was started by multiprocessing (a DataLoader worker, perhaps) and "
            "is no rank of the job: put what only ranks do under if __name__ == \"__main__\":")


def _without_duplicates(sets: List[List[int]]) -> List[List[int]]:
    """A duplicate takes no id; who passed it hears of it from _init_process_sets."""
    size = int(os.environ.get("HOROVOD_SIZE") or 1)
    seen = {tuple(range(size))}
    result = []
    for ranks in sets:
        if tuple(ranks) not in seen:
            seen.add(tuple(ranks))
            result.append(ranks)
    return result


def _resolve(sets: Sequence[ProcessSet]) -> List[List[int]]:
    """The ranks of each set.  A communicator stands for the groups it has over all ranks,
    in the order of their first rank; this process's own group gets the object."""
    result: List[List[int]] = []
    for process_set in sets:
        if process_set.mpi_comm is None:
            result.append(process_set.ranks or [])
            continue
        from mpi4py import MPI
        world = _process_sets.global_process_set.mpi_comm or MPI.COMM_WORLD
        mine = sorted(process_set.mpi_comm.allgather(world.Get_rank()))
        process_set.ranks = mine
        for group in sorted(set(map(tuple, world.allgather(mine)))):
            result.append(list(group))
    return result


def _adopt_communicator(comm: Any) -> None:
    """Forms the job of the ranks of an MPI communicator: MPI is the launcher then, and
    carries address and key of the rendezvous; the collectives are ours."""
    from horovod.common import mpi
    mpi.adopt(comm)
