"""The strategy for pytorch_lightning."""
from pytorch_lightning.strategies import ParallelStrategy
from pytorch_lightning.utilities.exceptions import MisconfigurationException

from horovod.lightning._pl_fabric import HorovodEnvironment
from horovod.lightning._strategy import TrainerStrategy


class HorovodStrategy(TrainerStrategy, ParallelStrategy):     # type: ignore[misc]
    __doc__ = TrainerStrategy.__doc__
    environment_class = HorovodEnvironment
    misconfiguration = MisconfigurationException
