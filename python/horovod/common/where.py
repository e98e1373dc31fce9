"""Where the main thread is, for the stall report of a rank that others wait for.

The report is written by a C thread that must not need the GIL: a rank that hangs in C code
holds it.  Python's faulthandler can print a thread's traceback from a signal handler; it is
registered here for a real-time signal nobody else uses, and writes into a pipe that the
core reads (src/python/py_where.c).
"""
import faulthandler
import os
import signal
import sys
import sysconfig
from typing import List

from horovod import _core

_SIGNAL = 11                    # above SIGRTMIN
_installed = False


def install() -> None:
    """Once per process; without effect where the signal is taken."""
    global _installed
    if _installed:
        return
    _installed = True
    number = signal.SIGRTMIN + _SIGNAL
    if signal.getsignal(number) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    faulthandler.register(number, file=writing, all_threads=False, chain=False)
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    _core.set_where(number, reading, package + os.sep, "\n".join(_installed_code()))


def _installed_code() -> List[str]:
    """Directories whose files are not the user's own."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found.update(p for p in sys.path if os.path.basename(p) in ("site-packages",
                                                                "dist-packages"))
    return sorted(os.path.join(path, "") for path in found if path)
