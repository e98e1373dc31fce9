"""``lightning_horovod.strategy.HorovodStrategy``, for scripts that import it from here."""
from horovod.lightning import HorovodStrategy

__all__ = ["HorovodStrategy"]
