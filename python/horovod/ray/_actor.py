"""What runs in a worker process on Ray: functions of this module are pickled by reference.

None of them imports a framework.  The job key comes as an argument and goes into the
core; it never stands in the environment.
"""
import os
import socket
from typing import Any, Dict, List, Mapping, Optional

import ray
import ray.util

from horovod import _core
from horovod.runner.util.network import interface_of

# Variables of an identity that this process may have inherited and does not have any more.
_OTHER_JOB = ("HOROVOD_KEY", "HOROVOD_KEY_FD", "HOROVOD_KEY_SOCKET", "HOROVOD_KEY_FILE",
              "HOROVOD_RENDEZVOUS_SERVE", "HOROVOD_ELASTIC")


def node_id() -> str:
    """The id of the Ray node of this process, in hexadecimal digits."""
    return ray.get_runtime_context().get_node_id()


def facts() -> Dict[str, Any]:
    """Where this process is."""
    address = ray.util.get_node_ip_address()
    return {"node_id": node_id(), "node_ip": address, "hostname": socket.gethostname(),
            "pid": os.getpid(), "gpu_ids": ray.get_gpu_ids(),
            "interface": interface_of(address)}


def interfaces() -> Dict[str, List[str]]:
    """Addresses by interface name."""
    result: Dict[str, List[str]] = {}
    for name, address in _core.interfaces():
        result.setdefault(name, []).append(address)
    return result


def setup(variables: Mapping[str, Any], key: Optional[bytes] = None) -> None:
    """Makes this process a worker of the job that the variables describe; ``hvd.init()``
    joins it.  A job of before is left: its operations fail."""
    leave()
    note_failure("")
    for name in _OTHER_JOB:
        os.environ.pop(name, None)
    set_variables(variables)
    if key is not None:
        _core.set_key(key)


def set_variables(variables: Mapping[str, Any]) -> None:
    """Into the environment of this process, as text."""
    os.environ.update({str(name): str(value) for name, value in variables.items()})


_failure = ""                   # of the training loop, see failure()


def note_failure(text: str) -> None:
    """Keeps what has ended the function of this process, for ``failure``."""
    global _failure
    _failure = text


def failure() -> str:
    """Why the function of this process has failed, "" if it has not: a rank that ends before
    ``hvd.init()`` can tell the others through the driver only."""
    return _failure


def abort(why: str = "the driver ended the job") -> None:
    """Fails every operation of this process's job, from any thread; harmless without one."""
    if _core.is_initialized():
        _core.abort(why)


def leave() -> None:
    """Leaves the job, if there is one."""
    if _core.is_initialized():
        from horovod.common.basics import HorovodBasics
        HorovodBasics(__file__).shutdown()
