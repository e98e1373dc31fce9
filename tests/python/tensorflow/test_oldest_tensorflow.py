"""The op library with the oldest TensorFlow of our range: the same file, byte for byte."""
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

import horovod

HERE = pathlib.Path(__file__).resolve().parent
OLDEST = ["tensorflow-cpu==2.13.1", "pytest==9.2.0", "pytest-timeout==2.4.0",
          "cloudpickle==3.1.2", "packaging==26.3"]
# Keras 2 comes with it, which horovod.keras and the batch norm do not serve.
CASES = "(ops or errors or training) and not batch_norm"
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.mark.skipif(sys.version_info[:2] > (3, 11), reason="TensorFlow 2.13 ends with 3.11")
def test_the_cases(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", *OLDEST], check=True)
    packages = tmp_path / "venv/lib" / f"python{sysconfig.get_python_version()}/site-packages"
    shutil.copytree(pathlib.Path(horovod.__file__).parent, packages / "horovod")
    run = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", CASES,
                          HERE / "test_tensorflow_cases.py"],
                         env={**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"},
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.returncode == 0 and " passed" in run.stdout, run.stdout
