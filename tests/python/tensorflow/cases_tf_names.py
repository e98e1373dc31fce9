"""The public names and arguments, with order and defaults, as scripts of the original use them.
More arguments may follow those that stand here."""
import importlib
import inspect

import horovod.tensorflow as hvd
from tf_support import case

MODULES = {
    "horovod.tensorflow":
        "init shutdown is_initialized start_timeline stop_timeline size local_size cross_size "
        "rank local_rank cross_rank is_homogeneous check_num_rank_power_of_2 mpi_built "
        "mpi_enabled mpi_threads_supported gloo_built gloo_enabled nccl_built ddl_built ccl_built "
        "cuda_built rocm_built handle_average_backwards_compatibility Average Sum Adasum Min Max "
        "Product ProcessSet global_process_set add_process_set remove_process_set Compression join "
        "elastic rank_op local_rank_op size_op local_size_op process_set_included_op "
        "SyncBatchNormalization LocalGradientAggregationHelper BroadcastGlobalVariablesHook "
        "broadcast_global_variables _executing_eagerly _make_allreduce_grads_fn _allreduce "
        "_grouped_allreduce _reducescatter _cache vars_to_refs refs_to_vars mpi_ops functions "
        "compression util gradient_aggregation gradient_aggregation_eager keras",
    "horovod.tensorflow.elastic": "run TensorFlowKerasState TensorFlowState",
    "horovod.tensorflow.sync_batch_norm": "SyncBatchNormalization",
    "horovod.tensorflow.keras": "init size rank Average Sum Compression callbacks elastic "
                                "broadcast_global_variables ProcessSet add_process_set "
                                "PartialDistributedOptimizer",
    "horovod.keras": "init size rank Average Sum Adasum Compression callbacks elastic load_model "
                     "DistributedOptimizer PartialDistributedOptimizer allreduce allgather "
                     "broadcast reducescatter broadcast_global_variables",
    "horovod.keras.callbacks": "BroadcastGlobalVariablesCallback MetricAverageCallback "
                               "LearningRateScheduleCallback LearningRateWarmupCallback "
                               "BestModelCheckpoint",
    "horovod.keras.elastic": "run KerasState CommitStateCallback UpdateBatchStateCallback "
                             "UpdateEpochStateCallback",
}
REDUCED = "op=None, prescale_factor=1.0, postscale_factor=1.0"
NAMED = "name=None, ignore_name_scope=False, process_set=SET"
DEVICES = "device_dense='', device_sparse='', compression=NONE"
GRADIENTS = DEVICES + ", sparse_as_dense=False"
KERAS = f"optimizer, name=None, {GRADIENTS}, gradient_predivide_factor=1.0, op=0, " \
        "backward_passes_per_step=1, average_aggregated_gradients=False"
TAPE = f"gradtape, {GRADIENTS}, op=0, gradient_predivide_factor=1.0, num_groups=0, groups=None, " \
       "process_set=SET"
SIGNATURES = {
    "allreduce": f"tensor, average=None, {DEVICES}, {REDUCED}, name=None, process_set=SET, "
                 "ignore_name_scope=False",
    "grouped_allreduce": f"tensors, average=None, {DEVICES}, {REDUCED}, process_set=SET, "
                         "ignore_name_scope=False, name=None",
    "allgather": f"tensor, {NAMED}",
    "grouped_allgather": f"tensors, {NAMED}",
    "broadcast": f"tensor, root_rank, {NAMED}",
    "broadcast_": "variables, root_rank, name=None, process_set=SET",
    "alltoall": f"tensor, splits=None, {NAMED}",
    "reducescatter": "tensor, device_dense='', compression=NONE, op=0, name=None, "
                     "process_set=SET, ignore_name_scope=False, prescale_factor=1.0, "
                     "postscale_factor=1.0",
    "grouped_reducescatter": "tensors, device_dense='', compression=NONE, op=0, "
                             "process_set=SET, prescale_factor=1.0, postscale_factor=1.0",
    "broadcast_variables": "variables, root_rank, process_set=SET, inplace=False",
    "broadcast_object": "obj, root_rank=0, session=None, name=None, process_set=SET",
    "broadcast_object_fn": "root_rank=0, session=None, name=None, process_set=SET",
    "allgather_object": "obj, session=None, name=None, process_set=SET",
    "size_op": "process_set_id=0, name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "rank_op": "name=None",
    "join": "",
    "DistributedGradientTape": TAPE + ", scale_local_gradients=True",
    "PartialDistributedGradientTape": TAPE + ", local_layers=None, scale_local_gradients=True",
    "DistributedOptimizer":
        f"optimizer, name=None, use_locking=False, {GRADIENTS}, backward_passes_per_step=1, op=0, "
        "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, "
        "groups=None, process_set=SET, scale_local_gradients=True",
    "SyncBatchNormalization": "fused=False",
    "keras.DistributedOptimizer": KERAS + ", num_groups=0, groups=None, process_set=SET, "
                                          "scale_local_gradients=True",
    "keras.PartialDistributedOptimizer":
        KERAS + ", groups=None, process_set=SET, local_layers=None, scale_local_gradients=True",
    "keras.allreduce": "value, name=None, average=None, prescale_factor=1.0, "
                       "postscale_factor=1.0, op=None, compression=NONE",
    "keras.allgather": "value, name=None",
    "keras.broadcast": "value, root_rank, name=None",
    "keras.reducescatter": "value, name=None, op=0",
    "keras.load_model": "filepath, custom_optimizers=None, custom_objects=None, "
                        "compression=NONE, legacy_opts=False",
    "keras.callbacks.BroadcastGlobalVariablesCallback":
        "root_rank, device='', local_variables=None",
    "keras.callbacks.MetricAverageCallback": "device=''",
    "keras.callbacks.LearningRateScheduleCallback":
        "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
        "momentum_correction=True, steps_per_epoch=None",
    "keras.callbacks.LearningRateWarmupCallback":
        "initial_lr, warmup_epochs=5, momentum_correction=True, steps_per_epoch=None, verbose=0",
    "keras.callbacks.BestModelCheckpoint":
        "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch'",
    "keras.elastic.CommitStateCallback": "state, batches_per_commit=1",
    "keras.elastic.KerasState": "model, optimizer=None",
    "elastic.TensorFlowKerasState": "model, optimizer=None, backend=None",
    "elastic.TensorFlowState": "variables=None, session=None",
}


@case(2)
def names_and_arguments():
    for module, names in MODULES.items():
        found = importlib.import_module(module)
        missing = [n for n in names.split() if not hasattr(found, n)]
        assert not missing, (module, missing)
    for absent in "barrier", "allreduce_async", "poll", "synchronize":
        assert not hasattr(hvd, absent), absent
    for name, text in SIGNATURES.items():
        target = hvd
        for part in name.split("."):
            target = getattr(target, part)
        scope = {"SET": hvd.global_process_set, "NONE": hvd.Compression.none}
        exec(f"def wanted({text}): pass", scope)
        wanted = inspect.signature(scope["wanted"]).parameters.values()
        ours = list(inspect.signature(target).parameters.values())[:len(wanted)]
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in wanted], \
            (name, ours)
