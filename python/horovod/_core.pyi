"""The compiled core: converts arguments, releases the GIL, calls libhvd.

A tensor crosses as (pointer, shape, dtype); the code of a dtype is its place in DTYPES, that
of an operation its place in OPS.  Reductions: average 0, sum 1, adasum 2, min 3, max 4,
product 5.

Argument errors are ValueError, everything else the class given to set_error
(HorovodInternalError); both carry status (str), scope (str) and rank (int).
"""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type

OPS: Tuple[str, ...]            # enum hvd_op: allreduce, allgather, ...
DTYPES: Tuple[str, ...]         # enum hvd_dtype: uint8, int8, ...
IDENTITY: Tuple[str, ...]       # variables that say who a process is, without HOROVOD_

class Error(RuntimeError):
    """Raised before set_error was called."""
    status: str
    scope: str
    rank: int

def set_error(type: Type[BaseException], /) -> None: ...
def set_where(signal: int, descriptor: int, skip: str, installed: str, /) -> None: ...

# -- life cycle --
def version() -> str: ...
def init(sets: Optional[Sequence[Sequence[int]]] = None, dynamic: bool = False, /) -> None: ...
def shutdown() -> None: ...
def abort(why: str, /) -> None: ...
def error_show(text: str, /) -> str: ...
def is_initialized() -> bool: ...
def rank() -> int: ...            # this and the next six: -1 before init
def size() -> int: ...
def local_rank() -> int: ...
def local_size() -> int: ...
def cross_rank() -> int: ...
def cross_size() -> int: ...
def is_homogeneous() -> int: ...

# -- operations --
def register_torch(dtypes: Dict[Any, int], strided: Any, tensor: type, parameter: type,
                   table: Any, /) -> None:
    """The dtype objects of torch with their codes, torch.strided, torch.Tensor and
    Parameter, and the capsule of its DLPack functions or None."""

def run_tensor(op: int, reduce: int, process_set: int, root: int, prescale: float,
               postscale: float, name: Optional[str], input: Any, output: Any, /) -> None:
    """A whole operation on one torch tensor with its own output, waiting included.
    NotImplemented when a tensor is not dense, contiguous and in host memory."""

def run_new(op: int, reduce: int, process_set: int, root: int, prescale: float,
            postscale: float, name: Optional[str], input: Any, splits: Any, /) -> Any:
    """A whole operation into a new tensor; an alltoall with splits (a tensor, list or tuple)
    gives the pair (tensor, rows received).  NotImplemented as above, where torch has no table
    of DLPack functions, and for what the other ranks must be told about."""

def submit_tensors(op: int, reduce: int, process_set: int, root: int, prescale: float,
                   postscale: float, name: Optional[str], inputs: List[Any],
                   outputs: Optional[List[Any]], splits: Optional[Sequence[int]],
                   grouped: bool, /) -> int:
    """A handle, or NotImplemented as above."""

def submit(op: int, reduce: int, process_set: int, root: int, prescale: float,
           postscale: float, tensors: Sequence[tuple], problem: Optional[str], /) -> int:
    """tensors: (wire name or None, input pointer, output pointer or 0, dtype, shape, splits or
    None) each; several make a group with one handle."""

def submit_device(op: int, reduce: int, process_set: int, root: int, prescale: float,
                  postscale: float, tensors: Sequence[tuple], problem: Optional[str],
                  device: int, stream: int, /) -> int:
    """As submit, of tensors on a GPU; stream: the handle of the caller's current one."""

def stream_wait(handle: int, stream: int, /) -> None:
    """The stream waits for the end of an operation that is done."""

def gpu_info() -> Tuple[str, int, str, str, str]:
    """(none, host or nccl, NCCL's version, driver, NCCL, why not more); loads the libraries."""

def nccl_version() -> int: ...
def gpu_search(directories: str, /) -> None: ...
def poll(handle: int, /) -> bool: ...
def wait(handle: int, timeout: float = -1.0, /) -> bool:
    """False when the time is over; raises what the operation failed with."""

def release(handle: int, /) -> None: ...
def orphan(handle: int, borrowed: Any, /) -> None:
    """Forgets a handle without waiting; what it borrows is kept until it is done."""

def output(handle: int, index: int, dtype: int, /) -> Tuple[Any, Optional[List[int]]]:
    """(DLPack capsule that owns the memory, received splits or None)."""

def value(handle: int, /) -> int: ...
def alloc(nbytes: int, /) -> Any:
    """DLPack capsule of uint8 in memory that the ranks of the host share, or None."""

def copy_start(pieces: List[Tuple[int, int, int]], /) -> None:
    """Copies (to, from, bytes) each, beside the caller's work; the memory must stay."""

def copy_wait() -> None: ...
def digest(address: int, nbytes: int, seed: int, /) -> int:
    """64 bits that tell whether bytes are the same."""

# -- elastic jobs --
def set_retired(error: type, /) -> None: ...
def elastic_info() -> Dict[str, Any]:
    """{is_elastic, worker, generation, sync} of the present generation."""

def elastic_pending() -> Tuple[int, int]:
    """(version, kind) of the newest update; kind 1 removed, 2 added, 4 this worker leaves."""

def elastic_committed(count: int, /) -> None: ...
def elastic_leave() -> None: ...

class Driver:
    """The driver of an elastic job; see horovod/driver.h."""
    port: int
    def __init__(self, key: bytes, job_id: str, addrs: Sequence[str], port: int, np: int,
                 min_np: int = ..., max_np: int = ..., reset_limit: int = ...,
                 restarts_per_slot: int = ..., elastic_timeout: float = ...,
                 cooldown_low: float = ..., cooldown_high: float = ..., grace: float = ...,
                 heartbeat: float = ..., gone: float = ...) -> None: ...
    def hosts(self, hosts: Sequence[Tuple[str, int]], /) -> None: ...
    def discovery_failed(self, why: str, /) -> None: ...
    def worker_ended(self, worker: int, code: int, signal: int = ..., text: str = ...,
                     /) -> None: ...
    def host_notice(self, host: str, /) -> None: ...
    def abort(self, why: str, /) -> None: ...
    def next(self, addrs: str = ..., /) -> Optional[Dict[str, Any]]:
        """{kind, worker, host, slot, rank, size, grace, ok, text, env}; kind: start, stop,
        rank, say, end."""
    def fileno(self) -> int: ...
    def status(self) -> str: ...
    def close(self) -> None: ...

# -- process sets --
def add_process_set(ranks: Sequence[int], /) -> int: ...
def remove_process_set(set_id: int, /) -> None: ...
def warm_process_set(set_id: int, /) -> None: ...
def process_set_rank(set_id: int, /) -> int: ...      # -1 unknown, -2 not a member
def process_set_size(set_id: int, /) -> int: ...      # -1 unknown
def process_sets() -> Dict[int, List[int]]: ...

# -- diagnostics --
def timeline_start(path: str, mark_cycles: bool = False, /) -> None: ...
def timeline_stop() -> None: ...
def stats() -> str: ...           # JSON
def recorder_dump(path: str, /) -> None: ...
def config() -> str: ...

PLAN_CHANGES: Dict[str, Tuple[str, ...]]        # state -> those that may follow
STEP_CHANGES: Dict[str, Tuple[str, ...]]

class Reducer:
    """The gradients of one optimizer; see src/python/py_bucket.c."""
    missing: int
    plan_state: str                 # NONE, CURRENT, EXPIRING
    step_state: str                 # IDLE, FILLING, REDUCED
    passes: int
    silent: int
    def __init__(self, passes: int, fallback: Callable[[int, Any], bool],
                 renew: Callable[[int, Any], Any], complete: Callable[[], None], /) -> None: ...
    def add(self) -> Callable[[Any], None]: ...
    def plan(self, reduce: int, process_set: int, prescale: float, postscale: float,
             buckets: List[tuple], /) -> None: ...
    def view(self, index: int, /) -> Any: ...
    def collect(self, params: List[Any], /) -> None: ...
    def wait(self, params: List[Any], /) -> List[int]: ...
    def reset(self) -> None: ...
    def forget(self) -> None: ...

class Server:
    """The rendezvous server of driver.h."""
    port: int
    def __init__(self, key: bytes, job_id: str, addrs: Sequence[str], port: int,
                 workers: int, timeout: float = 30.0, generation: int = 0) -> None: ...
    def next_generation(self, workers: int, /) -> None: ...
    def status(self) -> str: ...
    def abort(self, rank: int, why: str, /) -> None: ...
    def close(self) -> None: ...

def generate_key() -> bytes: ...
def set_key(key: bytes, /) -> None:
    """The job key of later inits of this process, where no variable gives another."""

def interfaces() -> List[Tuple[str, str]]:
    """(name, address) of the network interfaces of this host that are up."""

