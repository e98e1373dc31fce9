"""The programs of examples/spark, on the session of the tests."""
import pathlib
import re
import runpy
import sys

import pytest

pytest.importorskip("pyspark")

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples/spark"


@pytest.fixture
def run(spark, monkeypatch, capsys, tmp_path):
    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        monkeypatch.syspath_prepend(str(EXAMPLES))
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out
    yield run
    sys.modules.pop("digits", None)


def right(output):
    return int(re.search(r"(\d+) of 100 new digits are right", output)[1])


def test_run(run):
    output = run("run.py", "--steps", "50")
    assert "rank 1: y = " in output and "the same on all ranks: True" in output


def test_elastic(run):
    output = run("elastic.py", "--steps", "20", "--pause", "0")
    assert re.findall(r"rank (\d) of 2: y = ", output) == ["0", "1"]


def test_torch_estimator(run, tmp_path):
    assert right(run("torch_estimator.py", "--rows", "800", "--store", str(tmp_path))) > 50


def test_lightning_estimator(run, tmp_path):
    assert right(run("lightning_estimator.py", "--rows", "800", "--store", str(tmp_path))) > 50
