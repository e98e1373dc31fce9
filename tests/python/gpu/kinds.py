"""The devices that tests can have, by name.

late     tensors of streams.Late, which the core does not know: they take the Python way through
         host memory
standin  tensors of the CUDA driver's stand-in, handed over to the core
"""
import contextlib
import os
from unittest import mock

from gpu.device import Device
from gpu.streams import Late, StandIn
from horovod.torch import _gpu


@contextlib.contextmanager
def installed(kind, everything=True):
    """The device, while it is installed."""
    if kind == "late":
        seed = int(os.environ.get("STANDIN_SEED", "0"))
        with mock.patch.object(_gpu, "_settled", _gpu.Host()), \
                Device(Late(seed), everything).installed() as device:
            yield device
        return
    with Device(StandIn(), everything).installed() as device:
        yield device
