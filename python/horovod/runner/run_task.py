"""The worker of ``horovod.run``: ``python -m horovod.runner.run_task``.

The function comes through the descriptor HOROVOD_RUN_FUNC_FD and the result goes through
HOROVOD_RUN_RESULT_FD; under mpirun both are files in the private directory
HOROVOD_RUN_DIR.  HOROVOD_RUN_PARENT_FD is a pipe whose other end only the process has that
this one must not outlive.

Imported by: nobody; the launchers run it.
"""
import os
import signal
import sys
import threading
import traceback

from horovod.runner import _message
from horovod.runner.common.util import codec
from horovod.runner.common.util.env import get_env_rank_and_size


def _read_function() -> bytes:
    fd = os.environ.pop("HOROVOD_RUN_FUNC_FD", None)
    if fd is not None:
        return _message.read_all(int(fd))
    path = os.path.join(os.environ["HOROVOD_RUN_DIR"], "function")
    return _message.read_all(os.open(path, os.O_RDONLY | os.O_NOFOLLOW))


def _open_result() -> int:
    fd = os.environ.pop("HOROVOD_RUN_RESULT_FD", None)
    if fd is not None:
        os.set_inheritable(int(fd), False)      # processes of the function do not keep it
        return int(fd)
    path = os.path.join(os.environ["HOROVOD_RUN_DIR"], f"result.{get_env_rank_and_size()[0]}")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _follow_parent() -> None:
    """Ends this process when its parent does: the pipe has no race, the kernel's signal
    works although a thread holds the interpreter."""
    fd = os.environ.pop("HOROVOD_RUN_PARENT_FD", None)
    if fd is None:
        return
    import ctypes
    os.set_inheritable(int(fd), False)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)

    def wait() -> None:
        os.read(int(fd), 1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True, name="horovod-parent").start()


def _call() -> bytes:
    head, body = _message.unpack(_read_function())
    sys.path.extend(p for p in head["path"] if p not in sys.path)
    func, args, kwargs = codec.loads(body)
    return _message.pack({"ok": True}, codec.dumps(func(*args, **kwargs)))


def _describe(error: BaseException) -> str:
    """The traceback without the frames of this file."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename == __file__:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error,
                                              frame or error.__traceback__))


def _is_echo(error: BaseException) -> bool:
    """Whether it tells of the failure of another rank."""
    return any(kind.__name__ == "HorovodInternalError" for kind in type(error).__mro__)


def _tell_others(error: BaseException) -> None:
    """The ranks of the job this process has joined, if it has."""
    if "horovod.common.basics" in sys.modules:
        from horovod.common import uncaught
        uncaught.tell(error, error.__traceback__)


def main() -> int:
    """Runs the function.  Its exception goes to stderr, to the caller and to the others."""
    _follow_parent()
    result, failure = _open_result(), None
    try:
        message = _call()
    except Exception as error:
        failure, text = error, _describe(error)
        sys.stderr.write(text)
        message = _message.pack({"ok": False, "echo": _is_echo(error)},
                                text.encode("utf-8", "replace"))
    sys.stdout.flush()
    _message.write_all(result, message)
    if failure is not None:
        _tell_others(failure)           # after the message: theirs come later
    return int(failure is not None)


if __name__ == "__main__":
    sys.exit(main())
