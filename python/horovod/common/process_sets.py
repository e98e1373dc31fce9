"""Process sets: groups of ranks that run operations of their own.

    even = hvd.ProcessSet(range(0, 4, 2))
    hvd.init(process_sets=[even])                  # known from the start, or
    even = hvd.add_process_set([0, 2])             # added later, in dynamic mode

    hvd.allreduce(x, process_set=even)             # called by ranks 0 and 2 only
"""
import os
import weakref
from typing import Any, Iterable, List, Optional, Sequence, Union

from horovod import _core
from horovod.common import no_job
from horovod.common.exceptions import HorovodInternalError
from horovod.common.util import is_iterable

_basics: Any = None
_registered: "weakref.WeakSet[ProcessSet]" = weakref.WeakSet()


class ProcessSet:
    """A set of ranks, or the ranks of an mpi4py communicator.

    ``process_set_id`` is None until the set is registered by ``hvd.init`` or
    ``hvd.add_process_set``.  The order of ranks never matters.
    """
    process_set_id: Any             # int, None until registered
    ranks: Optional[List[int]]
    mpi_comm: Any

    def __init__(self, ranks_or_comm: Union[Iterable[int], Any]) -> None:
        self.process_set_id = None
        self.ranks = None
        self.mpi_comm = None
        if is_iterable(ranks_or_comm):
            ranks = list(ranks_or_comm)
            if any(not isinstance(r, int) for r in ranks):
                raise ValueError("ProcessSet should be initialized with a list of "
                                 "process ranks or an mpi4py.MPI.Comm object")
            self.ranks = sorted(ranks)
        else:
            self.mpi_comm = _checked_comm(ranks_or_comm)

    def _invalidate(self) -> None:
        self.process_set_id = None

    def size(self) -> Optional[int]:
        """The number of members, None if the set is not registered."""
        if self.process_set_id is None:
            return None
        return _asked(_core.process_set_size(self.process_set_id), self)

    def rank(self) -> Optional[int]:
        """The position of this process among the members, None if not registered."""
        if self.process_set_id is None:
            return None
        return _asked(_core.process_set_rank(self.process_set_id), self)

    def included(self) -> Optional[bool]:
        """Whether this process is a member; None if the ranks are not known."""
        if self.ranks is None:
            return None
        return _basics.rank() in self.ranks

    def __str__(self) -> str:
        return (f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
                f"mpi_comm={self.mpi_comm})")

    __repr__ = __str__


def _asked(answer: int, process_set: ProcessSet) -> int:
    if answer >= 0:
        return answer
    if not _core.is_initialized():
        raise ValueError(no_job.text())
    if answer == -2:
        raise ValueError(f"rank {_core.rank()} is not a member of {process_set}")
    raise ValueError(f"{process_set} does not exist any more")


def _checked_comm(comm: Any) -> Any:
    try:
        from mpi4py import MPI
    except ImportError:
        raise ValueError("Horovod process sets need a list of ranks, or an mpi4py "
                         "communicator and mpi4py") from None
    if not isinstance(comm, MPI.Comm):
        raise ValueError(f"{comm!r} is neither a list of ranks nor an mpi4py.MPI.Comm")
    return comm


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def _setup(basics: Any) -> None:
    """Tells this module which library to ask; called once by each framework."""
    global _basics
    _basics = basics


def is_dynamic() -> bool:
    """What HOROVOD_DYNAMIC_PROCESS_SETS says now."""
    text = os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "").strip().lower()
    return text not in ("", "0", "false", "no", "off")


def _temp_process_set_object(process_set_id: int) -> ProcessSet:
    """An object for an id of which only the number is known."""
    result = ProcessSet([])
    result.process_set_id = process_set_id
    result.ranks = _core.process_sets().get(process_set_id)
    return result


def _init_process_sets(process_sets: Sequence[ProcessSet]) -> None:
    """Gives the objects the ids that the runtime has for their ranks."""
    global_process_set.ranks = list(range(_core.size()))
    ids = {tuple(ranks): i for i, ranks in _core.process_sets().items()}
    seen = {0}
    for index, process_set in enumerate(process_sets):
        found = ids.get(tuple(process_set.ranks or ()))
        if found is None or found in seen:
            raise ValueError(f"process set {index}, {process_set}, is a duplicate or was "
                             f"not registered by hvd.init()")
        seen.add(found)
        process_set.process_set_id = found


def _add_possible(process_sets: Sequence[ProcessSet]) -> None:
    """Registers those sets whose ranks an elastic job has now; the others have no id until
    it has grown.  Every rank does this right after it has joined."""
    _init_process_sets([])
    for process_set in process_sets:
        process_set.process_set_id = None
        ranks = process_set.ranks or []
        if ranks and ranks[-1] < _core.size() and ranks != global_process_set.ranks:
            add_process_set(process_set)


def _forget_all() -> None:
    """The sets of the generation that is over have no meaning in the next one."""
    for process_set in list(_registered):
        process_set._invalidate()
    _registered.clear()


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a set while the job runs, in dynamic mode.

    Every rank of the job calls it, members or not, in the same order; it returns when all
    have come.
    """
    assert _basics is not None, "import a framework module of horovod first"
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise NotImplementedError("process sets of MPI communicators can only be given "
                                  "to hvd.init()")
    _check_initialized()
    try:
        process_set.process_set_id = _core.add_process_set(process_set.ranks)
    except HorovodInternalError as e:
        raise _as_value_error(e) from None
    _registered.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Removes a set; collective over all ranks of the job, in the same order.

    False if it is the global set, or is not registered.
    """
    assert _basics is not None, "import a framework module of horovod first"
    _check_initialized()
    set_id = process_set.process_set_id
    if set_id is None or set_id == 0:
        return False
    process_set._invalidate()
    if set_id not in _core.process_sets():
        return False
    try:
        _core.remove_process_set(set_id)
    except HorovodInternalError as e:
        raise _as_value_error(e) from None
    return True


def _check_initialized() -> None:
    if not _core.is_initialized():
        raise ValueError(no_job.text())


def _as_value_error(e: HorovodInternalError) -> BaseException:
    """A set cannot be changed: an argument error, unless a peer was lost."""
    if e.status in ("UNSUPPORTED", "SHUTDOWN", "NOT_INIT", "MISMATCH", "REMOTE"):
        return ValueError(str(e))
    return e
