"""Every case of the case modules, in one pair of ranks."""
import os
import pathlib

import pytest

import cases_fabric         # noqa: F401
import cases_failures       # noqa: F401
import cases_fit            # noqa: F401
import cases_lr             # noqa: F401
import cases_manual         # noqa: F401
import cases_values         # noqa: F401
import lightning_support

HERE = pathlib.Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    return {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
            "HOROVOD_RECORDER_DIR": str(tmp_path_factory.mktemp("recorder"))}


@pytest.mark.parametrize("function", lightning_support.registry, ids=[
    f"{f.__module__[6:]}-{f.__name__}" for f in lightning_support.registry])
def test_lightning(ranks, environment, function):
    ranks(2, function, environment, limit=100)
