"""``from ray.train.horovod import HorovodTrainer, HorovodConfig`` is ours under Ray Train V2
and Ray's own under V1, whatever was imported first.

One interpreter each: forks of one that has loaded what these imports have in common, which
is nearly all of their time.
"""
import os
import subprocess
import sys

import pytest

FIRST = {
    True: ["horovod", "horovod.ray", "horovod.ray.train", "ray.train", "ray.train.horovod",
           "ray.train.horovod.config", "ray.train.horovod.horovod_trainer",
           "ray.train.v2.horovod.horovod_trainer"],
    False: ["horovod.ray", "horovod.ray.train", "ray.train.horovod"]}

CHECK = """
import importlib, os, sys, traceback

def check(first, v2):
    importlib.import_module(first)
    from ray.train.horovod import HorovodTrainer, HorovodConfig
    from horovod.ray import train
    import ray.train.horovod.horovod_trainer, ray.train.v2.horovod.horovod_trainer
    assert HorovodTrainer is train.HorovodTrainer, HorovodTrainer
    assert HorovodConfig is train.HorovodConfig, HorovodConfig
    assert ray.train.horovod.HorovodConfig is HorovodConfig
    assert ray.train.horovod.horovod_trainer.HorovodTrainer is HorovodTrainer
    ours = HorovodTrainer.__module__, HorovodConfig.__module__
    if v2:
        import pickle
        assert ours == ("horovod.ray.train", "horovod.ray.train"), ours
        assert ray.train.v2.horovod.horovod_trainer.HorovodTrainer is HorovodTrainer
        assert pickle.loads(pickle.dumps(HorovodTrainer)) is HorovodTrainer
        HorovodTrainer(lambda: None, horovod_config=HorovodConfig(timeout_s=60))
    else:
        assert all(name.startswith("ray.train.horovod") for name in ours), ours
        assert ray.train.v2.horovod.horovod_trainer.HorovodTrainer is not HorovodTrainer

def fork(first, v2):
    child = os.fork()
    if child == 0:
        try:
            check(first, v2)
            os._exit(0)
        except BaseException:
            print("---", first, "first", flush=True)
            traceback.print_exc()
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

import pandas, pyarrow, ray.data
early = {n for n in sys.modules if n.split(".")[0] == "horovod" or n.startswith("ray.train")}
assert early <= {"horovod", "horovod._startup"}, early          # the start-up line
codes = [fork(first, {v2}) for first in {names}]
print("right" if not any(codes) else codes)
"""


def started(code, **variables):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("HOROVOD_", "RAY_TRAIN"))}
    env.update(variables)
    return subprocess.Popen([sys.executable, "-c", code], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def output(process):
    try:
        return process.communicate(timeout=100)[0].strip()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("v2", [True, False], ids=["v2", "v1"])
def test_import_matrix(v2):
    code = CHECK.replace("{v2}", str(v2)).replace("{names}", str(FIRST[v2]))
    text = output(started(code, RAY_TRAIN_V2_ENABLED=str(int(v2))))
    assert text.endswith("right"), text


def test_nothing_is_loaded_before_somebody_asks():
    text = output(started(
        "import sys, horovod.ray\n"
        "print([n for n in ('ray.train', 'torch') if n in sys.modules])"))
    assert text.endswith("[]"), text


def test_import_of_horovod_loads_no_ray():
    text = output(started("import sys, horovod\nprint('ray' in sys.modules)"))
    assert text == "False", text


def test_an_unknown_ray_is_named():
    text = output(started(
        "import sys, ray, types\n"
        "ray.__version__ = '9.9.9'\n"
        "sys.modules['ray.train.backend'] = types.ModuleType('ray.train.backend')\n"
        "import horovod.ray.train"))
    last = text.splitlines()[-1]
    assert "ImportError: horovod.ray.train needs Ray Train of Ray 2.51" in last, text
    assert "Ray 9.9.9 is installed" in last, text
