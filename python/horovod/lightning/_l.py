"""The strategy for lightning.pytorch."""
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from horovod.lightning._l_fabric import HorovodEnvironment
from horovod.lightning._strategy import TrainerStrategy


class HorovodStrategy(TrainerStrategy, ParallelStrategy):     # type: ignore[misc]
    __doc__ = TrainerStrategy.__doc__
    environment_class = HorovodEnvironment
    misconfiguration = MisconfigurationException
