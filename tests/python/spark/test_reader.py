"""The reader of Parquet files: every row once, on one rank, in batches."""
import threading

import numpy
import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet  # noqa: E402

from horovod.spark.common import _reader  # noqa: E402
from horovod.spark.common._reader import Loader, Reader, Transformation  # noqa: E402


def write(folder, rows, files, row_group=None):
    """Column i counts the rows, v is a vector of three."""
    cuts = [rows * k // files for k in range(files + 1)]
    for k in range(files):
        i = numpy.arange(cuts[k], cuts[k + 1])
        vectors = pa.array([[float(n), n + 0.5, -n] for n in i], pa.list_(pa.float64()))
        table = pa.table({"i": pa.array(i, pa.int64()), "v": vectors,
                          "x": pa.array(i / 7, pa.float32())})
        pyarrow.parquet.write_table(table, folder / f"part-{k:03}.parquet",
                                    row_group_size=row_group or max(1, rows))
    (folder / "_SUCCESS").touch()
    return str(folder)


def read(path, **kwargs):
    return [row for batch in Reader(path, ["i"], 8, **kwargs).batches(0) for row in batch["i"]]


@pytest.mark.parametrize("rows", [40, 41, 1000])
@pytest.mark.parametrize("files", [1, 3, 7])
def test_every_row_once_whatever_files_and_ranks(tmp_path, rows, files):
    path = write(tmp_path, rows, files, row_group=17)
    for size in (1, 2, 3, 5):
        parts = [read(path, rank=rank, size=size) for rank in range(size)]
        assert sorted(row for part in parts for row in part) == list(range(rows))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fewer_rows_than_ranks(tmp_path):
    path = write(tmp_path, 2, 1)
    assert [len(read(path, rank=rank, size=4)) for rank in range(4)] == [1, 1, 1, 1]


def test_order(tmp_path):
    path = write(tmp_path, 500, 4, row_group=50)
    assert read(path, shuffle=False) == list(range(500))
    reader = Reader(path, ["i"], 8, seed=3)
    epochs = [[row for batch in reader.batches(e) for row in batch["i"]] for e in range(3)]
    assert all(sorted(epoch) == list(range(500)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(500))
    again = Reader(path, ["i"], 8, seed=3)
    assert [row for batch in again.batches(0) for row in batch["i"]] == epochs[0]


def test_steps_are_fewer_or_more_than_a_pass(tmp_path):
    reader = Reader(write(tmp_path, 20, 2), ["i"], 8, shuffle=False)
    assert [len(b["i"]) for b in reader.batches(0)] == [8, 8, 4]
    assert [len(b["i"]) for b in reader.batches(0, 2)] == [8, 8]
    assert [len(b["i"]) for b in reader.batches(0, 5)] == [8, 8, 4, 8, 8]
    assert len(Loader(reader, None)) == 3 and len(Loader(reader, 5)) == 5


def test_types_and_vectors(tmp_path):
    import torch
    batch = next(iter(Loader(Reader(write(tmp_path, 20, 2), None, 8, shuffle=False), None)))
    assert batch["i"].dtype == torch.int64 and batch["x"].dtype == torch.float32
    assert batch["v"].shape == (8, 3) and batch["v"][2].tolist() == [2.0, 2.5, -2.0]
    batch["x"] += 1                                 # the memory is ours


def test_ragged_lists_are_refused(tmp_path):
    table = pa.table({"v": pa.array([[1.0], [1.0, 2.0]], pa.list_(pa.float64()))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="Rows of column v have varying sizes: 1 to 2"):
        list(Reader(str(tmp_path), None, 2).batches(0))


def test_the_part_is_kept_if_it_is_small_or_wanted(tmp_path, monkeypatch):
    path = write(tmp_path, 100, 2)
    monkeypatch.setattr(_reader, "CACHE_BYTES", 100)
    for kept in (False, True):
        reader = Reader(path, None, 10, cache_all=kept)
        first = sorted(row for b in reader.batches(0) for row in b["i"])
        assert (reader._cache is not None) == kept
        assert sorted(row for b in reader.batches(1) for row in b["i"]) == first


def test_packed_vectors():
    packed = numpy.array([[2, 1, 3, 10.0, 30.0], [0, 0, 0, 0, 0], [1, 4, 5.0, 0, 0]])
    assert _reader.unpack_sparse(packed, 5).tolist() == [
        [0, 10, 0, 30, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 5]]


def test_transformation(tmp_path):
    def double(frame):
        frame["y"] = frame["x"] * 2
        frame["v"] = frame["v"].map(lambda v: v[:2])
        return frame
    change = Transformation(double, [("y", numpy.float64, (1,), False)], ["i"])
    reader = Reader(write(tmp_path, 8, 1), None, 8, shuffle=False, transformation=change)
    batch = next(reader.batches(0))
    assert set(batch) == {"x", "v", "y"} and batch["y"].shape == (8, 1)
    assert batch["y"].dtype == numpy.float64 and batch["v"].shape == (8, 2)


def test_no_thread_is_left_when_a_pass_is_left(tmp_path):
    reader = Reader(write(tmp_path, 400, 8, row_group=10), ["i"], 8)
    batches = reader.batches(0)
    next(batches)
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("horovod-reader")]
