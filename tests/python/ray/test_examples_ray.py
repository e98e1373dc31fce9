"""The programs of examples/ray for the executor, and the file for a cluster."""
import pathlib
import re
import runpy
import subprocess
import sys

import pytest

pytest.importorskip("ray")

import yaml  # noqa: E402

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples/ray"


def run(monkeypatch, capsys, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out


def test_executor(shared_ray, monkeypatch, capsys):
    output = run(monkeypatch, capsys, "executor.py", "--workers", "2", "--steps", "30")
    losses = [float(text) for text in re.findall(r"logged .*'loss': ([\d.e-]+)", output)]
    assert len(losses) == 3 and losses[-1] < losses[0]
    assert "the same on all workers: True" in output


def test_stateful_executor(shared_ray, monkeypatch, capsys):
    output = run(monkeypatch, capsys, "stateful_executor.py")
    assert len(re.findall(r"^round \d: loss", output, re.M)) == 3
    assert "all hold the same weights: True" in output


def test_elastic(shared_ray, monkeypatch, capsys):
    output = run(monkeypatch, capsys, "elastic.py", "--max-workers", "2", "--steps", "20",
                 "--pause", "0")
    assert len(re.findall(r"^finished among 2 workers, loss 0\.\d+$", output, re.M)) == 2


@pytest.mark.long                   # two trials, each with workers of its own, on a Ray of its own
@pytest.mark.timeout(300)
def test_tune():
    done = subprocess.run([sys.executable, EXAMPLES / "tune.py", "--trials", "2"], timeout=280,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^2 trials of 2 ranks; best learning rate 0\.009", done.stdout, re.M), done


def test_the_cluster_file_is_one_that_ray_accepts():
    from ray.autoscaler._private.util import prepare_config, validate_config
    config = yaml.safe_load((EXAMPLES / "ray_cluster.yaml").read_text())
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["available_node_types"]["worker"]["min_workers"] == 3
    for command in ("ray up", "ray submit", "ray down"):
        assert command in (EXAMPLES / "ray_cluster.yaml").read_text()
