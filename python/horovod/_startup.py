"""Makes Lightning and torch.compile know Horovod, without importing anything by itself.

``install()`` puts one finder in front of ``sys.meta_path``.  It waits for a few modules and,
when one of them has been executed, does what ACTIONS says:

1. The strategy is registered by name.  What is registered is a function: the strategy, and
   with it torch and Horovod's library, are imported when a Trainer asks for them.
2. Under a launcher (``HOROVOD_RANK`` is set) the Trainer also takes the spellings of
   Lightning 1.x: ``accelerator="horovod"``, ``distributed_backend="horovod"``, ``gpus=``.
3. Under a launcher ``rank_zero_only`` knows the rank before there is a strategy.
4. torch.compile leaves our code alone: operations run between the graphs, as they are.
   Otherwise it warns that it cannot trace them.
5. Under mpirun a line is printed in one piece.  mpirun marks whatever it reads with the rank,
   and PYTHONUNBUFFERED, without which it would read nothing for a long time, cuts every line
   into its text and its end.

Importing ``horovod`` installs the finder.  For scripts that never do, horovod-startup.pth
does it when the interpreter starts, so that a script which runs under a launcher also runs
without one, as a job of one process.
``HOROVOD_NO_STARTUP_HOOK=1`` switches off that line and numbers 2 and 3.

Nothing here may raise: a Lightning that has changed costs a warning, not the script.  Only
os and sys are imported at the start: every process of a job runs this.
"""
import os
import sys

_ON = ("1", "true", "yes", "on")
# Registered name -> (what it is, arguments of the strategy).
NAMES = {
    "horovod": ("Horovod: gradients are averaged over the ranks", {}),
    "horovod_fp16": ("Horovod, gradients travel in 16 bits", {"compression": "fp16"}),
    "horovod_adasum": ("Horovod, updates are combined by Adasum", {"op": "adasum"}),
}


def _under_launcher():
    return "HOROVOD_RANK" in os.environ and \
        os.environ.get("HOROVOD_NO_STARTUP_HOOK", "").lower() not in _ON


# -- registration -------------------------------------------------------------------


def _factory(module, name):
    """Makes the strategy when it is asked for; ours can be told by the mark."""
    def strategy(**options):
        import importlib
        return getattr(importlib.import_module(module), name)(**options)
    strategy.of_horovod = True
    return strategy


def _register(registry, module, name):
    if "horovod" in registry:           # Lightning 1.x has its own
        return
    for key, (description, options) in NAMES.items():
        registry.register(key, _factory(module, name), description=description, **options)


def _register_trainer(module):
    ours = "_l" if module.__name__.startswith("lightning.") else "_pl"
    _register(module.StrategyRegistry, f"horovod.lightning.{ours}", "HorovodStrategy")


def _register_fabric(module):
    ours = "_l_fabric" if module.__name__.startswith("lightning.") else "_pl_fabric"
    _register(module.STRATEGY_REGISTRY, f"horovod.lightning.{ours}", "HorovodFabricStrategy")


# -- the spellings of Lightning 1.x -------------------------------------------------


def translated(arguments):
    """The Trainer's arguments in the words of Lightning 2, if they ask for Horovod."""
    def asks(key):
        value = arguments.get(key)
        return isinstance(value, str) and value.lower() == "horovod"

    if not asks("accelerator") and not asks("distributed_backend"):
        return arguments
    result = dict(arguments)
    if asks("distributed_backend"):
        del result["distributed_backend"]
    gpus = result.pop("gpus", None)
    if asks("accelerator") or "accelerator" not in result:
        result["accelerator"] = "gpu" if gpus and gpus != "0" else "cpu"
    if result.get("strategy") in (None, "auto"):
        result["strategy"] = "horovod"
    return result


def _patch_trainer(module):
    package = module.__name__.rpartition(".trainer.trainer")[0]
    strategies = sys.modules.get(package + ".strategies")
    known = strategies.StrategyRegistry["horovod"]["strategy"]
    trainer = module.Trainer
    if not _under_launcher() or not hasattr(known, "of_horovod") or \
            hasattr(trainer.__init__, "of_horovod"):
        return
    import functools
    inner = trainer.__init__

    @functools.wraps(inner)
    def __init__(self, *args, **kwargs):
        inner(self, *args, **translated(kwargs))

    __init__.of_horovod = True
    trainer.__init__ = __init__


def _know_rank(module):
    if _under_launcher():
        module.rank_zero_only.rank = int(os.environ["HOROVOD_RANK"])


def _leave_alone(module):
    if hasattr(module, "add"):          # not yet in torch 2.2
        module.add("horovod")


ACTIONS = {
    "torch._dynamo.trace_rules": _leave_alone,
    "lightning_utilities.core.rank_zero": _know_rank,
    "lightning.fabric.strategies": _register_fabric,
    "lightning_fabric.strategies": _register_fabric,
    "lightning.pytorch.strategies": _register_trainer,
    "pytorch_lightning.strategies": _register_trainer,
    "lightning.pytorch.trainer.trainer": _patch_trainer,
    "pytorch_lightning.trainer.trainer": _patch_trainer,
}


def _act(module):
    try:
        ACTIONS[module.__name__](module)
    except Exception as e:
        import warnings
        remedy = "; give the Trainer a strategy object: horovod.lightning.HorovodStrategy()"
        warnings.warn(f"Horovod could not make itself known to {module.__name__} "
                      f"({type(e).__name__}: {e})" +
                      (remedy if "lightning" in module.__name__ else ""))


# -- the finder ---------------------------------------------------------------------


class _Loader:
    """Loads as the real loader does, and acts afterwards."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        _act(module)

    def __getattr__(self, name):
        return getattr(self.loader, name)


class _Finder:
    """Finds nothing itself: wraps the loader that the other finders give."""

    def __init__(self):
        self.busy = set()               # names that are being looked for, for the others

    def find_spec(self, name, path=None, target=None):
        if name not in ACTIONS or name in self.busy:
            return None
        self.busy.add(name)
        try:
            spec = self.ask_the_others(name, path, target)
        finally:
            self.busy.discard(name)
        if hasattr(getattr(spec, "loader", None), "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def ask_the_others(self, name, path, target):
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find and finder is not self else None
            if spec is not None:
                return spec
        return None


_finder = _Finder()


def _print_whole_lines():
    """Standard output and error by lines: as early as unbuffered, and in one piece."""
    if os.environ.get("HOROVOD_CONTROLLER") == "mpi" and os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(line_buffering=True, write_through=False)


def install():
    """Waits for Lightning, or acts at once if it is there already.  Safe to call again."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
        _print_whole_lines()
    for name in ACTIONS:
        module = sys.modules.get(name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            _act(module)
