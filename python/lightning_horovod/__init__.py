"""The name of an older package; the strategy is ``horovod.lightning.HorovodStrategy``."""
from lightning_horovod.strategy import HorovodStrategy

__all__ = ["HorovodStrategy"]
