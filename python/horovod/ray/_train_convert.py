"""What users of the older guides write, in the words of Ray Train V2.

``ray.train.horovod.config.HorovodConfig``, ``tensorflow_backend=``, ``ray.air.ScalingConfig``
and ``ray.air.RunConfig``: each becomes what V2 takes, with one warning where something has
no place there any more.
"""
import warnings
from dataclasses import fields
from typing import Any, Dict, Mapping, Type

from horovod.ray.utils import user_variables

_STACK = 3          # warnings point at the line that builds the trainer


def variables(environment: Mapping[str, str]) -> Dict[str, str]:
    """The user's ``HOROVOD_*`` variables: what tunes a job, and its interface.  Who a process
    is, where its job meets and the key are never copied: the driver may itself be a worker
    of horovodrun."""
    result = user_variables(dict(environment))
    if environment.get("HOROVOD_GLOO_IFACE"):
        result["HOROVOD_GLOO_IFACE"] = environment["HOROVOD_GLOO_IFACE"]
    return result


def spelling(horovod_config: Any, tensorflow_backend: Any) -> Any:
    """The config, whichever argument it came by."""
    if tensorflow_backend is None:
        return horovod_config
    if horovod_config is not None:
        raise ValueError("HorovodTrainer got both horovod_config and tensorflow_backend, "
                         "which mean the same; give horovod_config only")
    warnings.warn("HorovodTrainer(tensorflow_backend=...) is an error of Ray's guide; "
                  "write horovod_config=...", DeprecationWarning, _STACK)
    return tensorflow_backend


def backend_config(target: Type[Any], config: Any) -> Any:
    """An object of our config class: the given one, or a copy of Ray's field by field."""
    if config is None:
        return target()
    if isinstance(config, target):
        return config
    names = [f.name for f in fields(target) if hasattr(config, f.name)]
    if "timeout_s" not in names or "key" not in names:
        raise ValueError(f"horovod_config must be a HorovodConfig, not "
                         f"{type(config).__name__}")
    return target(**{name: getattr(config, name) for name in names})


def scaling_config(config: Any) -> Any:
    """``ray.train.ScalingConfig`` of V2, also from that of ``ray.air``."""
    from ray.air.config import ScalingConfig as Old
    from ray.train.v2.api.config import ScalingConfig
    if not isinstance(config, Old) or isinstance(config, ScalingConfig):
        return config
    values = _values(config)
    if values.pop("trainer_resources", None) is not None:
        warnings.warn("ScalingConfig(trainer_resources=...) is dropped: the controller of "
                      "Ray Train V2 takes no resources", UserWarning, _STACK)
    return ScalingConfig(**values)


def run_config(config: Any) -> Any:
    """``ray.train.RunConfig`` of V2, also from that of ``ray.air``."""
    from ray.air.config import RunConfig as Old
    from ray.train.v2.api.config import CheckpointConfig, FailureConfig, RunConfig
    if not isinstance(config, Old):
        return config
    failure, checkpoint = config.failure_config, config.checkpoint_config
    dropped = [name for name, value in [
        ("stop", config.stop), ("callbacks", config.callbacks),
        ("progress_reporter", config.progress_reporter),
        ("log_to_file", config.log_to_file), ("fail_fast", failure.fail_fast),
        ("checkpoint_frequency", checkpoint.checkpoint_frequency),
        ("checkpoint_at_end", checkpoint.checkpoint_at_end)] if value]
    if dropped:
        warnings.warn(f"{', '.join(dropped)} of ray.air.RunConfig: dropped, Ray Train V2 "
                      f"does not have it", UserWarning, _STACK)
    return RunConfig(
        name=config.name, storage_path=config.storage_path,
        storage_filesystem=config.storage_filesystem,
        failure_config=FailureConfig(max_failures=failure.max_failures),
        checkpoint_config=CheckpointConfig(
            num_to_keep=checkpoint.num_to_keep,
            checkpoint_score_attribute=checkpoint.checkpoint_score_attribute,
            checkpoint_score_order=checkpoint.checkpoint_score_order or "max"))


def _values(config: Any) -> Dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config)}
