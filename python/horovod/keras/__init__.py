"""Horovod for stand-alone Keras 3 with the TensorFlow backend; see
``horovod.tensorflow.keras``, whose content this is."""
from horovod.keras import callbacks, elastic
from horovod.tensorflow.keras import *                          # noqa: F401,F403
from horovod.tensorflow.keras import __all__ as __all__
