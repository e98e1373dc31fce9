"""Stores: paths, files, what goes to the training processes."""
import os
import pickle

import pytest

pytest.importorskip("pyspark")

from horovod.spark.common.store import (DBFSLocalStore, FilesystemStore, HDFSStore,  # noqa: E402
                                        LocalStore, Store)


def test_which_store_a_path_has(monkeypatch, tmp_path):
    assert type(Store.create(str(tmp_path))) is FilesystemStore
    assert type(Store.create("memory://x")) is FilesystemStore
    assert type(Store.create("hdfs://name:9000/x")) is HDFSStore
    assert type(Store.create("/dbfs/x")) is FilesystemStore
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "15")
    assert type(Store.create("/dbfs/x")) is DBFSLocalStore
    assert isinstance(LocalStore(str(tmp_path)), FilesystemStore)
    assert os.listdir(tmp_path) == []               # nothing is made


def test_paths(tmp_path):
    store = LocalStore(str(tmp_path))
    prefix = f"file://{tmp_path}"
    assert store.prefix_path == prefix
    assert store.get_train_data_path() == f"{prefix}/intermediate_train_data"
    assert store.get_val_data_path(3) == f"{prefix}/intermediate_val_data.3"
    assert store.get_test_data_path(0) == f"{prefix}/intermediate_test_data.0"
    assert store.get_run_path("r") == f"{prefix}/runs/r" == store.get_checkpoint_path("r")
    assert store.get_logs_path("r") == f"{prefix}/runs/r/logs"
    assert store.get_checkpoint_filename() == "checkpoint"
    assert LocalStore(str(tmp_path), checkpoint_filename="c").get_checkpoint_filename() == "c"
    assert store.get_localized_path(prefix) == str(tmp_path)
    own = LocalStore(str(tmp_path), train_path=f"{tmp_path}/t", save_runs=False)
    assert own.get_train_data_path(1) == f"{prefix}/t.1"
    assert own.get_checkpoint_path("r") is None and own.get_logs_path("r") is None


def test_hdfs_addresses():
    store = HDFSStore("hdfs://name:9000/user/x")
    assert store.get_train_data_path() == "hdfs://name:9000/user/x/intermediate_train_data"
    assert store.get_localized_path(store.get_runs_path()) == "/user/x/runs"
    assert HDFSStore("/user/x").get_runs_path() == "hdfs:///user/x/runs"
    assert HDFSStore("/user/x", host="n", port=1).get_runs_path() == "hdfs://n:1/user/x/runs"
    with pytest.raises(ValueError, match="Mismatched HDFS namespace for URL"):
        HDFSStore("s3://bucket/x")
    with pytest.raises(ValueError, match="Failed to parse path from URL"):
        HDFSStore("hdfs://name:9000")


@pytest.mark.parametrize("path", ["dbfs:/x", "/dbfs/x", "file:/dbfs/x", "file:///dbfs/x"])
def test_dbfs_forms(path):
    assert DBFSLocalStore.matches_dbfs(path)
    assert DBFSLocalStore.normalize_path(path) == "/dbfs/x"
    assert DBFSLocalStore(path).get_checkpoint_filename() == "checkpoint.tf"


def test_hdfs_without_hadoop_says_what_is_missing(monkeypatch, tmp_path):
    for name in ("JAVA_HOME", "HADOOP_HOME", "ARROW_LIBHDFS_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    with pytest.raises(OSError, match=r"set JAVA_HOME, HADOOP_HOME .*\[HVD-612, ") as caught:
        HDFSStore("hdfs://name:9000/x").exists("/x")
    assert "\n" not in str(caught.value)


def test_other_paths_are_not_of_dbfs():
    with pytest.raises(ValueError, match="file:///dbfs/x"):
        DBFSLocalStore("/tmp/x")


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_files_and_sync(tmp_path, kind):
    store = Store.create(str(tmp_path / "s") if kind == "local" else "memory://s")
    remote = pickle.loads(pickle.dumps(store.to_remote("run", 0)))
    assert remote.run_path == store.get_run_path("run")
    with remote.get_local_output_dir() as folder:
        os.makedirs(f"{folder}/logs")
        for name, text in {"b.ckpt": "1", "a.ckpt": "2", "logs/events": "x"}.items():
            with open(f"{folder}/{name}", "w") as file:
                file.write(text)
        remote.sync(folder)
        copied = []
        copy, remote.sync._copy = remote.sync._copy, lambda path, to: copied.append(to)
        remote.sync(folder)
        assert copied == []                         # nothing has changed
        remote.sync._copy = copy
        with open(f"{folder}/a.ckpt", "w") as file:
            file.write("22")
        remote.sync(folder)
    assert not os.path.exists(folder)
    names = [path.rpartition("/")[2] for path in store.get_checkpoints("run")]
    assert names == ["a.ckpt", "b.ckpt"]
    assert store.read(store.get_checkpoints("run")[0]) == b"22"
    assert store.exists(store.get_logs_path("run") + "/events")
    store.write_text(store.get_run_path("run") + "/note", "hello")
    assert store.read(store.get_run_path("run") + "/note") == b"hello"
    assert not store.is_parquet_dataset(store.get_run_path("nothing"))
