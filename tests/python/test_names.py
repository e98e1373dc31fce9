"""The public names, and the arguments of each with their order and defaults, as scripts of
the original use them.  More arguments may follow those that stand here.

Names of Ray and Lightning are looked at in their own folders.
"""
import importlib
import inspect

import pytest

pytest.importorskip("torch")

import horovod.torch as hvd  # noqa: E402

MODULES = {
    "horovod": "run __version__",
    "horovod.torch": "mpi_ops functions compression optimizer sync_batch_norm elastic "
                     "HorovodInternalError Compression global_process_set Average Sum Adasum "
                     "Min Max Product",
    "horovod.torch.mpi_ops": "handle_average_backwards_compatibility _basics _handle_map "
                             "HorovodAllreduce HorovodGroupedAllreduce HorovodAllgather "
                             "HorovodGroupedAllgather HorovodBroadcast HorovodAlltoall "
                             "HorovodReducescatter HorovodGroupedReducescatter "
                             "global_process_set",
    "horovod.torch.functions": "broadcast_parameters broadcast_optimizer_state "
                               "broadcast_object allgather_object",
    "horovod.torch.compression": "Compressor NoneCompressor FP16Compressor Compression",
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": "run TorchState ElasticSampler sampler state State ObjectState",
    "horovod.torch.elastic.state": "TorchState StateHandler ModelStateHandler "
                                   "OptimizerStateHandler SamplerStateHandler "
                                   "get_handler_registry set_handler_registry",
    "horovod.common.exceptions": "HorovodInternalError HostsUpdatedInterrupt "
                                 "HorovodVersionMismatchError get_version_mismatch_message",
    "horovod.common.elastic": "State ObjectState run_fn notification_manager",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set "
                                   "remove_process_set _setup _init_process_sets "
                                   "_temp_process_set_object",
    "horovod.common.util": "EXTENSIONS _cache env",
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.runner.elastic.worker": "HostUpdateResult",
}

REDUCED = "op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=SET"
SCATTERED = "op=0, process_set=SET, prescale_factor=1.0, postscale_factor=1.0"
TORCH = {
    "init": "comm=None, process_sets=None",
    "start_timeline": "file_path, mark_cycles=False",
    "ProcessSet": "ranks_or_comm",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "poll": "handle",
    "synchronize": "handle",
    "allreduce": "tensor, average=None, name=None, compression=NONE, " + REDUCED,
    "allreduce_async": "tensor, average=None, name=None, " + REDUCED,
    "allreduce_": "tensor, average=None, name=None, " + REDUCED,
    "allreduce_async_": "tensor, average=None, name=None, " + REDUCED,
    "grouped_allreduce": "tensors, average=None, name=None, compression=NONE, " + REDUCED,
    "grouped_allreduce_async": "tensors, average=None, name=None, " + REDUCED,
    "grouped_allreduce_": "tensors, average=None, name=None, " + REDUCED,
    "grouped_allreduce_async_": "tensors, average=None, name=None, " + REDUCED,
    "sparse_allreduce_async": "tensor, name, op, process_set=SET",
    "allgather": "tensor, name=None, process_set=SET",
    "allgather_async": "tensor, name=None, process_set=SET",
    "grouped_allgather": "tensors, name=None, process_set=SET",
    "grouped_allgather_async": "tensors, name=None, process_set=SET",
    "broadcast": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_async": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_": "tensor, root_rank, name=None, process_set=SET",
    "broadcast_async_": "tensor, root_rank, name=None, process_set=SET",
    "alltoall": "tensor, splits=None, name=None, process_set=SET",
    "alltoall_async": "tensor, splits=None, name=None, process_set=SET",
    "reducescatter": "tensor, name=None, compression=NONE, " + SCATTERED,
    "reducescatter_async": "tensor, name=None, " + SCATTERED,
    "grouped_reducescatter": "tensors, name=None, compression=NONE, " + SCATTERED,
    "grouped_reducescatter_async": "tensors, name=None, " + SCATTERED,
    "join": "device=-1",
    "barrier": "process_set=SET",
    "broadcast_object": "obj, root_rank=0, name=None, process_set=SET",
    "allgather_object": "obj, name=None",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "DistributedOptimizer":
        "optimizer, named_parameters=None, compression=NONE, backward_passes_per_step=1, "
        "op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
        "sparse_as_dense=False, process_set=SET",
    "SyncBatchNorm": "num_features, eps=1e-5, momentum=0.1, affine=True, "
                     "track_running_stats=True",
    "elastic.TorchState": "model=None, optimizer=None, **kwargs",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
    **dict.fromkeys(
        "shutdown is_initialized size rank local_size local_rank cross_size cross_rank "
        "is_homogeneous mpi_threads_supported mpi_enabled gloo_enabled mpi_built "
        "gloo_built ddl_built ccl_built cuda_built rocm_built nccl_built stop_timeline"
        .split(), ""),
}
OTHERS = {
    "horovod:run":
        "func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None, "
        "slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None, "
        "host_discovery_script=None, start_timeout=None, ssh_port=None, "
        "ssh_identity_file=None, disable_cache=None, output_filename=None, verbose=None, "
        "use_gloo=None, use_mpi=None, mpi_args=None, network_interface=None, "
        "network_interfaces=None, executable=None, np=None, min_np=None, max_np=None",
    "horovod.common.basics:HorovodBasics": "pkg_path, *args",
    "horovod.common.util:check_extension": "ext_name, ext_env_var, pkg_path, *args",
    "horovod.common.util:get_extension_full_path": "pkg_path, *args",
    "horovod.common.util:extension_available": "ext_base_name, verbose=False",
    "horovod.common.util:gpu_available": "ext_base_name, verbose=False",
    "horovod.common.util:check_installed_version": "name, version, exception=None",
    "horovod.common.elastic:State": "bcast_object, get_rank",
    "horovod.common.elastic:ObjectState": "bcast_object, get_rank, **kwargs",
    "horovod.data:AsyncDataLoaderMixin":
        "async_loader_queue_size=64, debug_data_loader=False, *args, **kwargs",
}


def parameters(text):
    names = {"SET": hvd.global_process_set, "NONE": hvd.Compression.none}
    exec(f"def wanted({text}): pass", names)
    return list(inspect.signature(names["wanted"]).parameters.values())


def same(ours, wanted):
    default = ours.default is wanted.default or ours.default == wanted.default
    return (ours.name, ours.kind) == (wanted.name, wanted.kind) and default


@pytest.mark.parametrize("module", MODULES)
def test_modules(module):
    loaded = importlib.import_module(module)
    assert [n for n in MODULES[module].split() if not hasattr(loaded, n)] == []


@pytest.mark.parametrize("path", [*(f"horovod.torch:{name}" for name in TORCH), *OTHERS])
def test_signatures(path):
    module, _, name = path.partition(":")
    thing = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    wanted = parameters(OTHERS[path] if path in OTHERS else TORCH[name])
    ours = list(inspect.signature(thing).parameters.values())
    assert len(ours) >= len(wanted) and all(map(same, ours, wanted)), \
        f"{path}{inspect.signature(thing)}"
    assert path in OTHERS or thing.__doc__ or not wanted, f"{path} tells nothing of itself"


def test_what_a_change_of_hosts_may_be():
    from horovod.runner.elastic.worker import HostUpdateResult as Result
    assert [int(r) for r in (Result.no_update, Result.removed, Result.added, Result.mixed)] \
        == [0, 1, 2, 3]
    assert Result.removed | Result.added == Result.mixed
    from horovod.common import elastic
    assert elastic._REMOVED == Result.removed
