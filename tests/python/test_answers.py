"""What is missing or mistyped is answered with what to install or to type."""
import os
import subprocess
import sys

import pytest

BLOCKED = """
import sys
for name in ("torch", "tensorflow", "keras", "pyspark", "ray", "lightning", "pytorch_lightning",
             "numpy"):
    sys.modules[name] = None            # as if it were not installed
try:
    exec(sys.argv[1])
except ImportError as error:
    print(error)
"""


@pytest.mark.parametrize("statement, framework, extra", [
    ("import horovod.torch", "PyTorch", "torch"),
    ("import horovod.tensorflow", "TensorFlow", "tensorflow"),
    ("import horovod.tensorflow.keras", "TensorFlow", "tensorflow"),
    ("import horovod.keras", "TensorFlow", "tensorflow"),
    ("import horovod.spark", "PySpark", "spark"),
    ("import horovod.spark.torch", "PySpark", "spark"),
    ("import horovod.ray", "Ray", "ray"),
    ("import horovod.numpy", "numpy", "numpy"),
    ("from horovod.lightning import HorovodStrategy", "lightning", "lightning")])
def test_a_module_without_its_framework_says_what_to_install(statement, framework, extra):
    done = subprocess.run([sys.executable, "-c", BLOCKED, statement], capture_output=True,
                          text=True, timeout=60)
    assert f"needs {framework}" in done.stdout, done
    assert f"pip install 'horovod[{extra}]' [HVD-401, docs/troubleshooting.md]" in done.stdout, done


def test_a_text_gets_its_number_once_and_odd_texts_stay():
    from horovod.common.advice import advised
    text = advised("Horovod has not been initialized; use hvd.init().")
    assert text.endswith("hvd.init(). [HVD-220, docs/troubleshooting.md]")
    assert advised(text) == text
    for odd in ("", "nobody knows this", "a\0b", "\ud800"):
        assert advised(odd) == odd


def test_every_extra_that_is_named_exists():
    import importlib.metadata
    known = set(importlib.metadata.metadata("horovod").get_all("Provides-Extra"))
    assert {"torch", "pytorch", "ray", "lightning", "tensorflow", "keras", "spark", "numpy",
            "all"} <= known


def test_a_mistyped_variable_is_answered_with_the_nearest_name():
    done = subprocess.run([sys.executable, "-c", "from horovod import _core; _core.init()"],
                          env={**os.environ, "HOROVOD_FUSION_TRESHOLD": "1mb"},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "the nearest name is HOROVOD_FUSION_THRESHOLD" in done.stderr, done


def test_a_value_that_is_none_is_answered_with_what_is_allowed():
    done = subprocess.run([sys.executable, "-c", "from horovod import _core; _core.init()"],
                          env={**os.environ, "HOROVOD_FUSION_THRESHOLD": "much"},
                          capture_output=True, text=True, timeout=60)
    assert "'much' is not a size in 0..4gb; write it as 64mb" in done.stderr, done
