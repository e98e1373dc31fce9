"""Where an estimator keeps its data: intermediate Parquet files, checkpoints, logs.

    <prefix>/intermediate_train_data[.idx]    written by fit, read by the ranks; val, test alike
    <prefix>/runs/<run_id>                    checkpoints
    <prefix>/runs/<run_id>/logs               logs

Constructors connect to nothing and create nothing.
"""
import contextlib
import functools
import logging
import os
import shutil
import tempfile
from typing import Any, Callable, Dict, Iterator, List, Optional

from horovod.common.advice import advised

log = logging.getLogger("horovod.spark")


class Store:
    """What estimators use of a store."""

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> "Store":
        """The store for a path: of HDFS, of Databricks, or of any fsspec file system."""
        if prefix_path.startswith("hdfs://"):
            return HDFSStore(prefix_path, *args, **kwargs)
        if os.environ.get("DATABRICKS_RUNTIME_VERSION") and \
                DBFSLocalStore.matches_dbfs(prefix_path):
            return DBFSLocalStore(prefix_path, *args, **kwargs)
        return FilesystemStore(prefix_path, *args, **kwargs)


class FilesystemStore(Store):
    """A store on a file system that fsspec knows; without a scheme: local files."""

    def __init__(self, prefix_path: str, train_path: Optional[str] = None,
                 val_path: Optional[str] = None, test_path: Optional[str] = None,
                 runs_path: Optional[str] = None, save_runs: bool = True,
                 storage_options: Optional[Dict[str, Any]] = None,
                 checkpoint_filename: Optional[str] = None) -> None:
        self.prefix_path = self.get_full_path(prefix_path)
        self.storage_options = dict(storage_options or {})
        self._paths = {"train": train_path, "val": val_path, "test": test_path}
        self._runs_path = runs_path
        self._save_runs = save_runs
        self._checkpoint_filename = checkpoint_filename
        self._fs: Any = None

    def __getstate__(self) -> Dict[str, Any]:
        return dict(self.__dict__, _fs=None)        # connections stay here

    # -- paths --------------------------------------------------------------------------

    def _data_path(self, kind: str, idx: Optional[int]) -> str:
        path = self._paths[kind]
        path = self.get_full_path(path) if path else \
            _join(self.prefix_path, f"intermediate_{kind}_data")
        return path if idx is None else f"{path}.{idx}"

    def get_train_data_path(self, idx: Optional[int] = None) -> str:
        return self._data_path("train", idx)

    def get_val_data_path(self, idx: Optional[int] = None) -> str:
        return self._data_path("val", idx)

    def get_test_data_path(self, idx: Optional[int] = None) -> str:
        return self._data_path("test", idx)

    def saving_runs(self) -> bool:
        return self._save_runs

    def get_runs_path(self) -> str:
        return self.get_full_path(self._runs_path) if self._runs_path else \
            _join(self.prefix_path, "runs")

    def get_run_path(self, run_id: str) -> str:
        return _join(self.get_runs_path(), run_id)

    def get_checkpoint_path(self, run_id: str) -> Optional[str]:
        return self.get_run_path(run_id) if self._save_runs else None

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename or "checkpoint"

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> List[str]:
        """The files of the run that end so, sorted by name."""
        path = self.get_checkpoint_path(run_id)
        if path is None or not self.exists(path):
            return []
        found = self.fs.ls(self.get_localized_path(path), detail=False)
        return sorted(self.get_full_path(str(name)) for name in found
                      if str(name).endswith(suffix))

    def get_logs_path(self, run_id: str) -> Optional[str]:
        return _join(self.get_run_path(run_id), self.get_logs_subdir()) \
            if self._save_runs else None

    def get_logs_subdir(self) -> str:
        return "logs"

    def get_data_metadata_path(self, path: str) -> str:
        """A file beside the data, which readers of Parquet skip."""
        from horovod.spark.common.util import host_hash
        return _join(path, f"_{host_hash()}_cached_metadata.json")

    def get_localized_path(self, path: str) -> str:
        """The path without its scheme."""
        return localized(path)

    def get_full_path(self, path: str) -> str:
        """The path with its scheme; local paths become file:// addresses."""
        return path if "://" in path else "file://" + os.path.abspath(localized(path))

    def get_full_path_fn(self) -> Callable[[str], str]:
        return self.get_full_path

    # -- files --------------------------------------------------------------------------

    @property
    def fs(self) -> Any:
        """The fsspec file system."""
        if self._fs is None:
            self._fs = self._connect()
        return self._fs

    def _connect(self) -> Any:
        return connect(self.prefix_path, self.storage_options)

    def exists(self, path: str) -> bool:
        return self.fs.exists(self.get_localized_path(path))

    def read(self, path: str) -> bytes:
        with self.fs.open(self.get_localized_path(path), "rb") as file:
            return file.read()

    def write_text(self, path: str, text: str) -> None:
        local = self.get_localized_path(path)
        self.fs.makedirs(os.path.dirname(local), exist_ok=True)
        with self.fs.open(local, "wb") as file:
            file.write(text.encode())

    def is_parquet_dataset(self, path: str) -> bool:
        """Whether Parquet files are there; never raises."""
        try:
            return bool(self.get_parquet_dataset(path).files)
        except Exception:
            return False

    def get_parquet_dataset(self, path: str) -> Any:
        """A ``pyarrow.dataset``."""
        from pyarrow import dataset
        return dataset.dataset(self.get_localized_path(path), filesystem=self.fs,
                               format="parquet")

    # -- for the training processes -------------------------------------------------------

    def get_local_output_dir_fn(self, run_id: str) -> Callable[[], Any]:
        """A function that gives a temporary directory as a context manager."""
        return functools.partial(_local_output_dir, run_id)

    def sync_fn(self, run_id: str) -> Callable[[str], None]:
        """A function that copies what has changed in a directory into the run's."""
        return Sync(self, self.get_run_path(run_id))

    def to_remote(self, run_id: str, dataset_idx: Optional[int]) -> "RemoteStore":
        return RemoteStore(self, run_id, dataset_idx)


class RemoteStore:
    """What a training process needs of a store."""

    def __init__(self, store: FilesystemStore, run_id: str, dataset_idx: Optional[int]) -> None:
        self.train_data_path = store.get_train_data_path(dataset_idx)
        self.val_data_path = store.get_val_data_path(dataset_idx)
        self.test_data_path = store.get_test_data_path(dataset_idx)
        self.saving_runs = store.saving_runs()
        self.runs_path = store.get_runs_path()
        self.run_path = store.get_run_path(run_id)
        self.checkpoint_path = store.get_checkpoint_path(run_id)
        self.logs_path = store.get_logs_path(run_id)
        self.checkpoint_filename = store.get_checkpoint_filename()
        self.logs_subdir = store.get_logs_subdir()
        self.storage_options = store.storage_options
        self.get_local_output_dir = store.get_local_output_dir_fn(run_id)
        self.sync = store.sync_fn(run_id)


class Sync:
    """Copies the content of a local directory, and of each file only what is new."""

    def __init__(self, store: FilesystemStore, target: str) -> None:
        self._store, self._target = store, target
        self._seen: Dict[str, tuple] = {}

    def __call__(self, local_dir: str) -> None:
        target = self._store.get_localized_path(self._target)
        for folder, _, names in os.walk(local_dir):
            for name in names:
                path = os.path.join(folder, name)
                info = os.stat(path)
                state = info.st_mtime_ns, info.st_size
                relative = os.path.relpath(path, local_dir)
                if self._seen.get(relative) != state:
                    self._copy(path, _join(target, relative))
                    self._seen[relative] = state
        log.debug("%s was copied to %s", local_dir, self._target)

    def _copy(self, path: str, to: str) -> None:
        fs = self._store.fs
        fs.makedirs(os.path.dirname(to), exist_ok=True)
        fs.put_file(path, to)


@contextlib.contextmanager
def _local_output_dir(run_id: str) -> Iterator[str]:
    path = tempfile.mkdtemp(prefix=f"horovod-{run_id[:40].replace(os.sep, '_')}-")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def localized(path: str) -> str:
    """The path without its scheme: of object stores with the bucket, of HDFS without the
    host, which the file system object knows."""
    scheme, found, rest = path.partition("://")
    if not found:
        return path[len("file:"):] if path.startswith("file:") else path
    if scheme == "hdfs":
        return "/" + rest.partition("/")[2]
    return rest


def connect(path: str, storage_options: Optional[Dict[str, Any]] = None) -> Any:
    """The fsspec file system of a path."""
    import fsspec
    scheme = path.partition("://")[0] if "://" in path else "file"
    if scheme == "hdfs":
        host, port = parse_hdfs(path)[:2]
        return _hdfs({"host": host, "port": port, **(storage_options or {})})
    return fsspec.filesystem(scheme, **(storage_options or {}))


def _hdfs(options: Dict[str, Any]) -> Any:
    from fsspec.implementations.arrow import HadoopFileSystem
    try:
        return HadoopFileSystem(**options)
    except OSError as e:
        if "libhdfs" not in str(e) and "libjvm" not in str(e):
            raise
        raise OSError(advised(
            "HDFS is reached through Hadoop's libhdfs, which pyarrow does not find here: set "
            "JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob) for the driver and "
            f"the executors; pyarrow says: {str(e).partition(chr(10))[0]}")) from None


def _join(path: str, *names: str) -> str:
    return "/".join([path.rstrip("/"), *names])


class LocalStore(FilesystemStore):
    """The older name of ``FilesystemStore``."""


def parse_hdfs(url: str) -> tuple:
    """(host, port, path) of an address whose scheme, host and port may be missing."""
    rest, host, port = url, "default", 0
    scheme, found, after = url.partition("://")
    if found:
        if scheme != "hdfs":
            raise ValueError(f"Mismatched HDFS namespace for URL {url}: the scheme is {scheme}")
        authority, slash, path = after.partition("/")
        rest = slash + path
        host, _, number = authority.partition(":")
        host, port = host or "default", int(number or 0)
    if not rest.startswith("/") or rest == "":
        raise ValueError(f"Failed to parse path from URL {url}: an absolute path is needed")
    return host, port, rest


class HDFSStore(FilesystemStore):
    """A store on HDFS, through ``pyarrow.fs.HadoopFileSystem`` (libhdfs)."""

    def __init__(self, prefix_path: str, host: Optional[str] = None,
                 port: Optional[int] = None, user: Optional[str] = None,
                 kerb_ticket: Optional[str] = None, driver: str = "libhdfs",
                 extra_conf: Optional[Dict[str, str]] = None, *args: Any,
                 **kwargs: Any) -> None:
        own_host, own_port, _ = parse_hdfs(prefix_path)
        self._host, self._port = host or own_host, port or own_port
        super().__init__(prefix_path, *args, **kwargs)
        options = {"host": self._host, "port": self._port, "user": user,
                   "kerb_ticket": kerb_ticket, "extra_conf": extra_conf}
        self.storage_options = {**{k: v for k, v in options.items() if v is not None},
                                **self.storage_options}

    def get_full_path(self, path: str) -> str:
        if "://" in path:
            parse_hdfs(path)
            return path
        authority = "" if self._host == "default" else \
            self._host + (f":{self._port}" if self._port else "")
        return f"hdfs://{authority}{parse_hdfs(path)[2]}"


class DBFSLocalStore(FilesystemStore):
    """A store on Databricks' file system, through its mount /dbfs."""

    _FORMS = ("dbfs:///", "file:///dbfs/", "dbfs:/", "file:/dbfs/", "/dbfs/")

    def __init__(self, prefix_path: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(self.normalize_path(prefix_path), *args, **kwargs)

    @classmethod
    def matches_dbfs(cls, path: str) -> bool:
        return path.startswith(cls._FORMS)

    @classmethod
    def normalize_path(cls, path: str) -> str:
        """The path below /dbfs."""
        for form in cls._FORMS:
            if path.startswith(form):
                return "/dbfs/" + path[len(form):].lstrip("/")
        raise ValueError(f"Provided path is not a valid DBFS path: {path}; write dbfs:/x, "
                         "/dbfs/x, file:/dbfs/x or file:///dbfs/x")

    def get_checkpoint_filename(self) -> str:
        return self._checkpoint_filename or "checkpoint.tf"
