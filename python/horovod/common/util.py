"""Small helpers that scripts and tools import from here."""
import contextlib
import functools
import importlib
import importlib.util
import json
import os
import sysconfig
import warnings
from typing import Any, Callable, Iterator, Optional, Sequence

from horovod.common.exceptions import (HorovodVersionMismatchError,
                                       get_version_mismatch_message)

EXTENSIONS = ["tensorflow", "torch", "mxnet"]


def get_ext_suffix() -> str:
    """The suffix of compiled extensions of this interpreter."""
    return sysconfig.get_config_var("EXT_SUFFIX") or ".so"


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """The path of an extension next to ``pkg_path``."""
    return os.path.join(os.path.dirname(pkg_path), *args) + get_ext_suffix()


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """ImportError if the compiled core is absent: one serves every framework."""
    if importlib.util.find_spec("horovod._core") is None:
        raise ImportError(f"Extension {ext_name} has not been built: horovod._core is "
                          f"missing. Install Horovod again.")


def _cache(function: Callable) -> Callable:
    """Memoises by arguments; the first result sticks."""
    results: dict = {}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        key = (args, frozenset(kwargs.items()))
        if key not in results:
            results[key] = function(*args, **kwargs)
        return results[key]
    return wrapper


def _in_child(question: Callable[[], Any], verbose: bool = False) -> Any:
    """The answer of a forked child, so that the imports it needs stay out of this process;
    None if it has none."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            answer = json.dumps(question()).encode()
            os.write(write, answer)
        except BaseException as e:                     # whatever an import may raise
            if verbose:
                os.write(2, f"{type(e).__name__}: {e}\n".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return json.loads(answer) if answer else None


@_cache
def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether ``horovod.<name>`` can be imported here."""
    def question() -> bool:
        importlib.import_module(f"horovod.{ext_base_name}")
        return True
    return bool(_in_child(question, verbose))


@_cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Whether the framework sees a GPU."""
    def question() -> bool:
        if ext_base_name == "tensorflow":
            import tensorflow
            return bool(tensorflow.config.list_physical_devices("GPU"))
        if ext_base_name != "torch":
            raise ImportError(f"horovod.{ext_base_name} is not there")
        import torch
        return torch.cuda.is_available()
    return bool(_in_child(question, verbose))


def _built(attribute: str) -> Any:
    """What the core was built with, the same for all frameworks; None if there is none."""
    from horovod.common.basics import HorovodBasics
    if not any(importlib.util.find_spec(name) for name in EXTENSIONS):
        return None
    return getattr(HorovodBasics(__file__), attribute)()


@_cache
def mpi_built(verbose: bool = False) -> Optional[bool]:
    return _built("mpi_built")


@_cache
def gloo_built(verbose: bool = False) -> Optional[bool]:
    return _built("gloo_built")


@_cache
def nccl_built(verbose: bool = False) -> Optional[int]:
    return _built("nccl_built")


@_cache
def ddl_built(verbose: bool = False) -> Optional[bool]:
    return _built("ddl_built")


@_cache
def ccl_built(verbose: bool = False) -> Optional[bool]:
    return _built("ccl_built")


@contextlib.contextmanager
def env(**kwargs: Optional[str]) -> Iterator[None]:
    """Sets environment variables for a while; a value of None is ignored."""
    saved = {}
    for name, value in kwargs.items():
        if value is not None:
            saved[name] = os.environ.get(name)
            os.environ[name] = value
    try:
        yield
    finally:
        for name, old in saved.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable:
    """``f(op, average)``: the reduction that the two arguments ask for."""
    def handle_average_backwards_compatibility(op: Optional[int],
                                               average: Optional[bool]) -> int:
        if op is not None:
            if average is not None:
                raise ValueError("The op parameter supersedes average. "
                                 "Please provide only one of them.")
            return op
        if average is not None:
            warnings.warn("Parameter `average` has been replaced with `op` and will be "
                          "removed", DeprecationWarning, stacklevel=3)
            return reduce_ops.Average if average else reduce_ops.Sum
        return reduce_ops.Average
    return handle_average_backwards_compatibility


def num_rank_is_power_2(num_rank: int) -> bool:
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence, n: int) -> list:
    """n nearly even consecutive chunks, the longer ones first."""
    size, longer = divmod(len(l), n)
    ends = [i * size + min(i, longer) for i in range(n + 1)]
    return [l[a:b] for a, b in zip(ends, ends[1:])]


def check_installed_version(name: str, version: str,
                            exception: Optional[BaseException] = None) -> None:
    """Compares a framework's version with the one noted at installation, if any was:
    this core is not compiled against frameworks, so usually none is."""
    path = os.path.join(os.path.dirname(os.path.dirname(__file__)), "metadata.json")
    if not os.path.exists(path):
        return
    with open(path) as file:
        installed = json.load(file).get(name)
    if installed in (None, version):
        return
    if exception is not None:
        raise HorovodVersionMismatchError(name, version, installed) from exception
    warnings.warn(get_version_mismatch_message(name, version, installed))


def is_iterable(x: Any) -> bool:
    try:
        iter(x)
    except TypeError:
        return False
    return True


@_cache
def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compares version texts; ``target`` must have three parts."""
    from packaging import version
    if not isinstance(ver, str) or not isinstance(target, str):
        raise ValueError(f"versions are texts, not {ver!r} and {target!r}")
    if len(target.split(".")) != 3:
        raise ValueError(f"the version to compare with must look like 1.2.3, not {target}")
    return version.parse(ver) >= version.parse(target)
