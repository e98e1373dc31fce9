"""The name under which programs for older versions start the choice of interfaces."""
from typing import Any, Iterable, Sequence

from horovod.ray import utils


def _driver_fn(all_host_names: Sequence[str], node_workers: Sequence[Any],
               settings: Any) -> Iterable[str]:
    return utils.detect_nics(settings, all_host_names, node_workers)
