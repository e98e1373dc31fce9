"""Callbacks for ``model.fit``."""
from horovod.tensorflow.keras.callbacks import *                # noqa: F401,F403
from horovod.tensorflow.keras.callbacks import __all__ as __all__
