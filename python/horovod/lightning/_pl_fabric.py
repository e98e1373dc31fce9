"""The classes for lightning_fabric."""
from lightning_fabric.plugins import ClusterEnvironment
from lightning_fabric.strategies import ParallelStrategy
from lightning_fabric.strategies.strategy import _BackwardSyncControl
from lightning_fabric.utilities.exceptions import MisconfigurationException

from horovod.lightning._environment import Environment
from horovod.lightning._fabric import FabricStrategy, SyncControl


class HorovodEnvironment(Environment, ClusterEnvironment):
    __doc__ = Environment.__doc__


class HorovodSyncControl(SyncControl, _BackwardSyncControl):
    __doc__ = SyncControl.__doc__


class HorovodFabricStrategy(FabricStrategy, ParallelStrategy):     # type: ignore[misc]
    __doc__ = FabricStrategy.__doc__
    environment_class = HorovodEnvironment
    misconfiguration = MisconfigurationException
    sync_control_class = HorovodSyncControl
