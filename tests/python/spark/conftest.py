"""Fixtures: which Spark a test wants; see spark_support.py."""
import shutil

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
if shutil.which("java") is None:
    pytest.skip("there is no Java", allow_module_level=True)

import spark_support  # noqa: E402


@pytest.fixture
def spark():
    """``local[2]``, shared by all who ask for it."""
    yield spark_support.use("local")
    spark_support.wait_until(lambda: not spark_support.training_processes())


@pytest.fixture
def cluster():
    """Two executors of one core each."""
    yield spark_support.use("cluster")
    spark_support.wait_until(lambda: not spark_support.training_processes())


@pytest.fixture
def store(tmp_path):
    """Of an estimator that has trained on nothing yet."""
    from horovod.spark.common import util
    from horovod.spark.common.store import LocalStore
    util.clear_training_cache()
    return LocalStore(str(tmp_path / "store"))


def _spark_of(item):
    """0: none, 1: local, 2: cluster."""
    return 2 if "cluster" in item.fixturenames else int("spark" in item.fixturenames)


def pytest_collection_modifyitems(items):
    """Tests of one Spark stand together, so that each is started once."""
    here = [i for i, item in enumerate(items) if spark_support.HERE in item.path.parents]
    for i in here:                      # the first one starts a JVM, whatever else runs here
        items[i].add_marker(pytest.mark.timeout(900))
    for place, item in zip(here, sorted((items[i] for i in here), key=_spark_of)):
        items[place] = item


def pytest_sessionfinish(session, exitstatus):
    spark_support.finish()
