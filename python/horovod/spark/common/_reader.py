"""Reads a rank's part of a Parquet dataset in batches of tensors.

1. The row groups of all files, sorted by path, are one long list of N rows; rank r of n reads
   the rows [r N / n, (r + 1) N / n).  Counts differ by at most one row, whatever the files; a
   row group on a border is read by both and cut.
2. A pass gives every row of the part once.  Shuffled, the order of the row groups and of the
   rows within blocks of BLOCK_ROWS follows from (seed, epoch): the same on every run.
3. Threads read and convert ahead, at most as many row groups as there are workers: memory is
   bounded by that, and by one block.  A part of at most CACHE_BYTES, or any with
   ``inmemory_cache_all``, is kept as arrays after the first pass.
4. Columns become numpy arrays without a loop over rows: lists of equal length by reshaping
   their values.
"""
import collections
import concurrent.futures
import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy

from horovod.common.advice import advised

BLOCK_ROWS = 1 << 16            # larger ones are shuffled more slowly (caches of the processor)
CACHE_BYTES = 256 << 20

Arrays = Dict[str, numpy.ndarray]


class Piece(NamedTuple):
    """Rows [begin, end) of one row group."""
    fragment: Any
    row_group: int
    begin: int
    end: int


def pieces(dataset: Any, rank: int, size: int) -> List[Piece]:
    """What a rank reads: rule 1."""
    groups = []
    for fragment in sorted(dataset.get_fragments(), key=lambda f: f.path):
        groups += [(fragment, g.id, g.num_rows) for g in fragment.row_groups if g.num_rows]
    total = sum(count for _, _, count in groups)
    first, last = rank * total // size, (rank + 1) * total // size
    if first == last and total > 0:             # fewer rows than ranks
        first, last = rank % total, rank % total + 1
    result, at = [], 0
    for fragment, number, count in groups:
        begin, end = max(first - at, 0), min(last - at, count)
        if begin < end:
            result.append(Piece(fragment, number, begin, end))
        at += count
    return result


# ---- Columns --------------------------------------------------------------------------------

def to_numpy(name: str, column: Any) -> numpy.ndarray:
    """The values of an Arrow column, which may share its memory: rule 4."""
    import pyarrow as pa
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    kind = column.type
    if pa.types.is_fixed_size_list(kind):
        inner = to_numpy(name, column.flatten())
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(name, column)
    if pa.types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int64())
    return column.to_numpy(zero_copy_only=False)


def _lists(name: str, column: Any) -> numpy.ndarray:
    import pyarrow.compute as pc
    if column.null_count:
        raise ValueError(advised(f"Column {name} does not have uniform shape: it has nulls"))
    count = len(column)
    inner = to_numpy(name, column.flatten())
    if count == 0:
        return inner.reshape(0, 0)
    limits = pc.min_max(pc.list_value_length(column)).as_py()
    if limits["min"] != limits["max"]:
        raise ValueError(advised(
            f"Rows of column {name} have varying sizes: {limits['min']} to "
            f"{limits['max']} elements"))
    return inner.reshape(count, limits["min"], *inner.shape[1:])


def unpack_sparse(packed: numpy.ndarray, size: int) -> numpy.ndarray:
    """Dense rows of [count, indices..., values..., zeros...]."""
    counts = packed[:, 0].astype(numpy.int64)
    rows = numpy.repeat(numpy.arange(len(packed)), counts)
    ends = numpy.cumsum(counts)
    places = numpy.arange(len(rows)) - numpy.repeat(ends - counts, counts)
    result = numpy.zeros((len(packed), size), packed.dtype)
    indices = packed[rows, 1 + places].astype(numpy.int64)
    result[rows, indices] = packed[rows, 1 + counts[rows] + places]
    return result


class Transformation:
    """The user's function on a batch as a pandas DataFrame, and the fields it declares."""

    def __init__(self, fn: Optional[Callable], edit_fields: Optional[Sequence] = None,
                 removed_fields: Optional[Sequence[str]] = None) -> None:
        self._fn, self._removed = fn, set(removed_fields or ())
        self._edited = {field[0]: field for field in edit_fields or ()}

    def __call__(self, arrays: Arrays) -> Arrays:
        if self._fn is not None:
            import pandas
            frame = pandas.DataFrame({name: list(a) if a.ndim > 1 else a
                                      for name, a in arrays.items()})
            frame = self._fn(frame)
            arrays = {name: _of_series(frame[name]) for name in frame.columns}
        return {name: self._declared(name, a) for name, a in arrays.items()
                if name not in self._removed}

    def _declared(self, name: str, array: numpy.ndarray) -> numpy.ndarray:
        if name not in self._edited:
            return array
        _, dtype, shape = tuple(self._edited[name])[:3]
        array = array.astype(dtype, copy=False)
        return array.reshape(len(array), *shape) if shape and None not in shape else array


def _of_series(series: Any) -> numpy.ndarray:
    values = series.to_numpy()
    if values.dtype == object and len(values) and isinstance(values[0], (numpy.ndarray, list)):
        return numpy.stack([numpy.asarray(value) for value in values])
    return values


# ---- Reading --------------------------------------------------------------------------------

class Reader:
    """Batches of one rank.  ``formats`` has, for packed columns, their dense size."""

    def __init__(self, path: str, columns: Optional[Sequence[str]], batch_size: int,
                 rank: int = 0, size: int = 1, shuffle: bool = True, seed: Optional[int] = None,
                 workers: int = 2, cache_all: bool = False,
                 transformation: Optional[Transformation] = None,
                 formats: Optional[Dict[str, int]] = None,
                 storage_options: Optional[Dict[str, Any]] = None) -> None:
        from pyarrow import dataset
        from horovod.spark.common.store import connect, localized
        self._dataset = dataset.dataset(localized(path), format="parquet",
                                        filesystem=connect(path, storage_options))
        self._columns = list(columns) if columns is not None else self._dataset.schema.names
        self._pieces = pieces(self._dataset, rank, size)
        if not self._pieces:
            raise ValueError(advised(f"No rows found in dataset: {path}"))
        self.rows = sum(piece.end - piece.begin for piece in self._pieces)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed or 0
        self._workers, self._cache_all = max(0, workers), cache_all
        self._transformation, self._formats = transformation, formats or {}
        self._cache: Optional[Arrays] = None

    def batches(self, epoch: int, steps: Optional[int] = None) -> Iterator[Arrays]:
        """One pass, or ``steps`` batches: fewer, or more by beginning again.  The last batch of
        a pass may be smaller."""
        done, turn = 0, 0
        while True:
            for batch in self._pass(epoch, turn):
                if steps is not None and done == steps:
                    return
                done += 1
                yield batch
            turn += 1
            if steps is None or done == steps:
                return

    def _pass(self, epoch: int, turn: int) -> Iterator[Arrays]:
        random = numpy.random.default_rng([self._seed & (1 << 63) - 1, epoch, turn])
        rest: Optional[Arrays] = None
        for block in self._blocks(random):
            if rest is not None:
                block = {name: numpy.concatenate([rest[name], a]) for name, a in block.items()}
            count = _length(block)
            whole = count - count % self._batch_size
            for at in range(0, whole, self._batch_size):
                yield self._finished({name: a[at:at + self._batch_size]
                                      for name, a in block.items()})
            rest = {name: a[whole:] for name, a in block.items()} if whole < count else None
        if rest is not None:
            yield self._finished(rest)

    def _finished(self, batch: Arrays) -> Arrays:
        return self._transformation(batch) if self._transformation is not None else batch

    def _blocks(self, random: numpy.random.Generator) -> Iterator[Arrays]:
        """Arrays that may be written to, shuffled if that is wanted."""
        for arrays in self._shards(random):
            count = _length(arrays)
            # Rows of a large piece are dealt out to its blocks, not cut into them.
            order = random.permutation(count) if self._shuffle else None
            for at in range(0, count, BLOCK_ROWS):
                chosen = slice(at, at + BLOCK_ROWS)
                if order is None:
                    yield {name: a[chosen].copy() for name, a in arrays.items()}
                else:
                    yield {name: a[order[chosen]] for name, a in arrays.items()}

    def _shards(self, random: numpy.random.Generator) -> Iterator[Arrays]:
        if self._cache is not None:
            yield self._cache
            return
        order = random.permutation(len(self._pieces)) if self._shuffle else \
            range(len(self._pieces))
        kept: Optional[Dict[int, Arrays]] = {}
        size = 0
        for index, arrays in zip(order, self._read([self._pieces[i] for i in order])):
            size += sum(a.nbytes for a in arrays.values())
            if kept is not None and (self._cache_all or size <= CACHE_BYTES):
                kept[int(index)] = arrays
            else:
                kept = None
            yield arrays
        if kept is not None:
            parts = [kept[index] for index in sorted(kept)]
            self._cache = {name: numpy.concatenate([part[name] for part in parts])
                           for name in parts[0]}

    def _read(self, wanted: List[Piece]) -> Iterator[Arrays]:
        """The pieces in this order, read ahead: rule 3."""
        if self._workers == 0:
            yield from map(self._convert, wanted)
            return
        ahead: "collections.deque[concurrent.futures.Future]" = collections.deque()
        with concurrent.futures.ThreadPoolExecutor(self._workers, "horovod-reader") as pool:
            try:
                for piece in wanted:
                    ahead.append(pool.submit(self._convert, piece))
                    if len(ahead) > self._workers:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for future in ahead:
                    future.cancel()

    def _convert(self, piece: Piece) -> Arrays:
        table = piece.fragment.subset(row_group_ids=[piece.row_group]).to_table(
            columns=self._columns, use_threads=False)
        table = table.slice(piece.begin, piece.end - piece.begin)
        result = {name: to_numpy(name, table.column(name)) for name in self._columns}
        for name, size in self._formats.items():
            if name in result:
                result[name] = unpack_sparse(result[name], size)
        return result


def _length(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))


def to_tensors(batch: Arrays) -> Dict[str, Any]:
    """Tensors of the same memory; what torch has no type for stays an array."""
    import torch
    return {name: torch.from_numpy(a) if a.dtype.kind in "biuf" else a
            for name, a in batch.items()}


class Loader:
    """A data loader: ``steps`` batches of tensors for each epoch it is asked for."""

    def __init__(self, reader: Reader, steps: Optional[int], first_epoch: int = 0) -> None:
        self.reader = reader
        self.steps = steps
        self.epoch = first_epoch
        self._per_pass = math.ceil(reader.rows / reader._batch_size)

    def __len__(self) -> int:
        return self.steps if self.steps is not None else self._per_pass

    def __iter__(self) -> Iterator[Dict[str, Any]]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        return map(to_tensors, self.reader.batches(epoch, self.steps))
