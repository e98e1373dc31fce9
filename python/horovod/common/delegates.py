"""What a framework's module offers of the job itself: ``init``, ``rank``, ``size``, ...

Each of them says ``from horovod.common.delegates import *``; they share one HorovodBasics.
"""
from horovod.common import process_sets as _process_sets
from horovod.common.basics import HorovodBasics
from horovod.common.util import get_average_backwards_compatibility_fun

_basics = HorovodBasics(__file__)
_process_sets._setup(_basics)

init = _basics.init
shutdown = _basics.shutdown
is_initialized = _basics.is_initialized
abort = _basics.abort
stats = _basics.stats
start_timeline = _basics.start_timeline
stop_timeline = _basics.stop_timeline
size = _basics.size
local_size = _basics.local_size
cross_size = _basics.cross_size
rank = _basics.rank
local_rank = _basics.local_rank
cross_rank = _basics.cross_rank
is_homogeneous = _basics.is_homogeneous
mpi_threads_supported = _basics.mpi_threads_supported
mpi_enabled = _basics.mpi_enabled
mpi_built = _basics.mpi_built
gloo_enabled = _basics.gloo_enabled
gloo_built = _basics.gloo_built
nccl_built = _basics.nccl_built
ddl_built = _basics.ddl_built
ccl_built = _basics.ccl_built
cuda_built = _basics.cuda_built
rocm_built = _basics.rocm_built

Average = _basics.Average
Sum = _basics.Sum
Adasum = _basics.Adasum
Min = _basics.Min
Max = _basics.Max
Product = _basics.Product

handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_basics)

__all__ = [
    "Adasum", "Average", "Max", "Min", "Product", "Sum", "_basics", "abort", "ccl_built",
    "cross_rank", "cross_size", "cuda_built", "ddl_built", "gloo_built", "gloo_enabled",
    "handle_average_backwards_compatibility", "init", "is_homogeneous", "is_initialized",
    "local_rank", "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported",
    "nccl_built", "rank", "rocm_built", "shutdown", "size", "start_timeline", "stats",
    "stop_timeline"]
