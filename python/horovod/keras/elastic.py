"""Elastic training with ``model.fit``; see ``horovod.tensorflow.keras.elastic``."""
from horovod.tensorflow.keras.elastic import *                  # noqa: F401,F403
from horovod.tensorflow.keras.elastic import __all__ as __all__
