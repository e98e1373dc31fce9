"""How Lightning gets to know Horovod, in every order of imports, and what that costs."""
import importlib.metadata
import json
import os
import pathlib
import selectors
import subprocess
import sys
import sysconfig
import textwrap
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "PL_"))}
# What a launcher sets: a job of one.
RANK = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1"}
LIGHTNING = {
    "lightning": "import lightning.pytorch",
    "pytorch_lightning": "import pytorch_lightning",
    "both": "import lightning.pytorch, pytorch_lightning",
}
ORDERS = {
    "no-horovod": "startup()\n{lightning}",
    "horovod-first": "import horovod\n{lightning}",
    "lightning-first": "{lightning}\nimport horovod",
}
LIMIT = 60.0


class Zygote:
    def __init__(self, directory):
        env = {**CLEAN, "HOROVOD_RECORDER_DIR": str(directory), "OMP_NUM_THREADS": "1",
               "PYTHONDONTWRITEBYTECODE": "1", "HOROVOD_NO_STARTUP_HOOK": "1"}
        self.log = open(directory / "zygote.log", "w+")
        self.process = subprocess.Popen([sys.executable, str(HERE / "zygote.py")], env=env,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True, cwd=directory)

    def run(self, code, variables=()):
        request = [textwrap.dedent(code), dict(variables)]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(LIMIT), f"no answer in {LIMIT} s"
        answer = json.loads(self.process.stdout.readline())
        assert answer == "ok", answer

    def close(self):
        self.process.kill()
        self.process.communicate()
        self.log.close()


@pytest.fixture(scope="module")
def zygote(tmp_path_factory):
    result = Zygote(tmp_path_factory.mktemp("zygote"))
    yield result
    result.close()


CHECKS = """
import os, sys, inspect

QUIET = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False,
             enable_model_summary=False)

def check(pl, other):
    import importlib
    registry = importlib.import_module(pl.__name__ + ".strategies").StrategyRegistry
    assert {"horovod", "horovod_fp16", "horovod_adasum"} <= set(registry), list(registry)
    accelerators = importlib.import_module(pl.__name__ + ".accelerators")
    assert "horovod" not in accelerators.AcceleratorRegistry
    assert "accelerator" in inspect.signature(pl.Trainer).parameters
    for arguments in (dict(strategy="horovod", accelerator="cpu"),
                      dict(strategy="Horovod"), dict(accelerator="horovod"),
                      dict(accelerator="horovod", gpus=0, precision="bf16-mixed"),
                      dict(distributed_backend="horovod"),
                      dict(distributed_backend="horovod", accelerator="cpu")):
        trainer = pl.Trainer(**arguments, **QUIET)
        assert type(trainer.strategy).__name__ == "HorovodStrategy", arguments
        assert isinstance(trainer.strategy, importlib.import_module(
            pl.__name__ + ".strategies").ParallelStrategy)
        assert trainer.strategy.root_device.type == "cpu"
        if "precision" in arguments:
            assert trainer.precision_plugin.device == "cpu"
    try:
        pl.Trainer(accelerator="horovod", gpus=1, **QUIET)
        raise SystemExit("there is no GPU here")
    except Exception as e:
        assert "No supported gpu backend found" in str(e), e
    assert type(pl.Trainer(accelerator="cpu", **QUIET).strategy).__name__ == \
        "SingleDeviceStrategy"
    os.environ["PL_TRAINER_STRATEGY"] = "horovod"
    assert type(pl.Trainer(**QUIET).strategy).__name__ == "HorovodStrategy"
    assert type(pl.Trainer(strategy="auto", **QUIET).strategy).__name__ != "HorovodStrategy"
    del os.environ["PL_TRAINER_STRATEGY"]

def loaded():
    return [sys.modules[n] for n in ("lightning.pytorch", "pytorch_lightning")
            if n in sys.modules]
"""


@pytest.mark.parametrize("package", LIGHTNING)
@pytest.mark.parametrize("order", ORDERS)
def test_imports(zygote, order, package):
    code = ORDERS[order].format(lightning=LIGHTNING[package])
    zygote.run(f"""{CHECKS}
{code}
assert "horovod.torch" not in sys.modules, "nobody has asked for it yet"
for pl in loaded():
    check(pl, None)
assert not __import__("torch").distributed.is_initialized()
""", RANK)


def test_the_rank_is_known_before_there_is_a_strategy(zygote):
    zygote.run("""
        startup()
        import lightning.pytorch
        from lightning.pytorch.utilities import rank_zero_only
        assert rank_zero_only.rank == 3
    """, {**RANK, "HOROVOD_RANK": "3"})


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_outside_a_launcher_the_strategy_is_known(zygote, package):
    """One process, to debug a script that never imports horovod."""
    zygote.run(f"""
        import sys
        startup()
        import {package} as pl
        assert not hasattr(pl.Trainer.__init__, "of_horovod")
        assert "horovod.torch" not in sys.modules, "nobody has asked for it yet"
        trainer = pl.Trainer(strategy="horovod", accelerator="cpu", logger=False)
        assert (trainer.world_size, trainer.global_rank) == (1, 0)
    """)


def test_a_plain_script_trains(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import lightning as L
        from lightning.pytorch.demos.boring_classes import BoringModel

        trainer = L.Trainer(strategy="horovod", accelerator="cpu", fast_dev_run=True,
                            enable_progress_bar=False)
        trainer.fit(BoringModel())
        print("world size", trainer.world_size)
    """))
    done = subprocess.run([sys.executable, str(script)], env=CLEAN, cwd=tmp_path, text=True,
                          capture_output=True, timeout=100)
    assert done.returncode == 0 and "world size 1" in done.stdout, done.stderr


def test_outside_a_launcher_an_import_registers_only(zygote):
    zygote.run("""
        import lightning.pytorch as pl
        init = pl.Trainer.__init__
        import horovod
        assert pl.Trainer.__init__ is init
        for arguments in (dict(accelerator="horovod"), dict(distributed_backend="horovod")):
            try:
                pl.Trainer(**arguments)
                raise SystemExit(arguments)
            except (ValueError, TypeError):
                pass
        trainer = pl.Trainer(strategy="horovod", accelerator="cpu", logger=False)
        assert (trainer.world_size, trainer.global_rank) == (1, 0)
    """)


def test_the_hook_can_be_switched_off(zygote):
    off = {**RANK, "HOROVOD_NO_STARTUP_HOOK": "1"}
    zygote.run("""
        import sys
        startup()
        assert "horovod" not in sys.modules
        import lightning.pytorch as pl
        assert "horovod" not in pl.strategies.StrategyRegistry
        import horovod
        assert "horovod" in pl.strategies.StrategyRegistry
        assert not hasattr(pl.Trainer.__init__, "of_horovod")
    """, off)


def test_fabric_and_the_old_name(zygote):
    zygote.run("""
        import lightning_fabric, sys
        import horovod
        from lightning_fabric.strategies import STRATEGY_REGISTRY
        assert "horovod" in STRATEGY_REGISTRY
        strategy = lightning_fabric.Fabric(strategy="horovod", accelerator="cpu").strategy
        assert type(strategy).__name__ == "HorovodFabricStrategy"
        assert "pytorch_lightning" not in sys.modules
        import lightning.pytorch
        from lightning_horovod.strategy import HorovodStrategy
        assert issubclass(HorovodStrategy, lightning.pytorch.strategies.Strategy)
        from horovod.lightning import HorovodEnvironment, HorovodStrategy as same, classes
        assert same is HorovodStrategy and HorovodEnvironment().world_size() == 1
        assert HorovodEnvironment.detect()
        assert classes("pytorch_lightning").HorovodStrategy is not same
    """, RANK)


def test_a_lightning_with_its_own_strategy_is_left_alone(zygote, tmp_path):
    """Lightning 1.x: the name is taken, the Trainer knows the old words."""
    package = tmp_path / "pytorch_lightning"
    (package / "trainer").mkdir(parents=True)
    (package / "__init__.py").write_text("from .trainer.trainer import Trainer\n")
    (package / "strategies.py").write_text(
        "StrategyRegistry = {'horovod': {'strategy': 'its own'}}\n")
    (package / "trainer" / "__init__.py").write_text("")
    (package / "trainer" / "trainer.py").write_text(
        "from pytorch_lightning import strategies\n"
        "class Trainer:\n    def __init__(self, **kwargs): self.kwargs = kwargs\n")
    zygote.run(f"""
        import sys, warnings
        warnings.simplefilter("error")
        sys.path.insert(0, {str(tmp_path)!r})
        startup()
        import pytorch_lightning as pl
        assert pl.strategies.StrategyRegistry == {{"horovod": {{"strategy": "its own"}}}}
        assert pl.Trainer(accelerator="horovod").kwargs == {{"accelerator": "horovod"}}
        assert type(pl.__loader__).__module__ != "horovod._startup"
        assert type(pl.strategies.__spec__.loader).__module__ != "horovod._startup"
    """, RANK)


def test_a_lightning_that_has_changed_costs_a_warning(zygote, tmp_path):
    package = tmp_path / "pytorch_lightning"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "strategies.py").write_text("changed = True\n")
    zygote.run(f"""
        import sys, warnings
        sys.path.insert(0, {str(tmp_path)!r})
        startup()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            import pytorch_lightning.strategies
        assert pytorch_lightning.strategies.changed and len(seen) == 1, seen
        assert "HorovodStrategy()" in str(seen[0].message)
    """, RANK)


# -- what it costs --------------------------------------------------------------------


def test_the_line_is_installed_with_the_package():
    names = [f.name for f in importlib.metadata.files("horovod")]
    assert "horovod-startup.pth" in names
    text = (pathlib.Path(sysconfig.get_path("platlib")) / "horovod-startup.pth").read_text()
    assert text.startswith("import os;") and len(text.splitlines()) == 1


def test_the_switched_off_line_costs_less_than_a_millisecond(monkeypatch):
    import site
    monkeypatch.setenv("HOROVOD_NO_STARTUP_HOOK", "1")
    place = sysconfig.get_path("platlib")
    times = []
    for _ in range(20):
        start = time.perf_counter()
        site.addpackage(place, "horovod-startup.pth", None)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3, times


def test_importing_horovod_is_cheap():
    """Counted in CPU time: the machine may be busy."""
    code = ("import time, sys; t = time.process_time(); import horovod; "
            "print(time.process_time() - t); "
            "assert not {'torch', 'lightning', 'numpy', 'ray'} & set(sys.modules)")
    times = []
    for variables in (CLEAN, {**CLEAN, **RANK}):
        times.append(min(float(subprocess.run(
            [sys.executable, "-c", code], env=variables, check=True, capture_output=True,
            text=True, timeout=60).stdout) for _ in range(5)))
    assert max(times) < 0.05, times
