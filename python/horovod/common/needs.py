"""What a module of ours needs and does not find, in the words of whoever has to install it."""
import importlib

from horovod.common.advice import advised


def need(module: str, name: str, framework: str, extra: str) -> None:
    """Imports ``module``, or says how ``horovod.<name>`` gets its ``framework``."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        if getattr(error, "name", None) not in (None, module):
            raise                       # it is there, and lacks something itself
        text = f"horovod.{name} needs {framework}: pip install 'horovod[{extra}]'"
        raise ImportError(advised(text), name=module) from error
