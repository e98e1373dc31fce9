"""Reads flight recorder files: ``python -m horovod.recorder FOLDER``

A process writes its file when an operation stalls, when the job fails and on SIGUSR2, into the
folder of its job (the log says where). Give that folder, or the files of all ranks (of other
hosts, too), and this shows what each rank did last, which
operations are open somewhere, and which ranks have not come to them.
"""
import argparse
import glob
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Dict, Iterable, Iterator, List, Optional, TextIO, Tuple

_HEAD = re.compile(r"# rank (\d+) of (\d+) pid (\d+) at (\d+\.\d+) host (.*) why (.*)$")
_LINE = re.compile(r"(\d+) -(\d+\.\d+)s (\w+) (\S+) set (-?\d+) (\d+) bytes (\w+) ?(.*)$")

Key = Tuple[int, str, str]


@dataclass
class Record:
    number: int
    time: float
    event: str
    op: str
    process_set: int
    size: int
    status: str
    name: str

    @property
    def key(self) -> Key:
        return self.process_set, self.op, self.name


@dataclass
class Dump:
    """The ring of one rank, as it was when it was written last."""
    rank: int
    job_size: int
    pid: int
    time: float
    host: str
    why: str
    records: List[Record] = field(default_factory=list)

    def last(self) -> Dict[Key, Record]:
        """The last record of each operation."""
        return {r.key: r for r in self.records if r.event != "note"}

    def open(self) -> Dict[Key, Record]:
        return {key: r for key, r in self.last().items() if r.event == "submit"}


def parse(lines: Iterable[str]) -> Iterator[Dump]:
    """Every dump of a file; lines that are none are left out."""
    dump: Optional[Dump] = None
    for line in lines:
        line = line.rstrip("\n")
        if head := _HEAD.match(line):
            if dump is not None:
                yield dump
            rank, size, pid, time, host, why = head.groups()
            dump = Dump(int(rank), int(size), int(pid), float(time), host, why)
        elif dump is not None and (match := _LINE.match(line)):
            number, age, event, op, process_set, size, status, name = match.groups()
            dump.records.append(Record(int(number), dump.time - float(age), event, op,
                                       int(process_set), int(size), status, name))
    if dump is not None:
        yield dump


def read(paths: Iterable[str]) -> Dict[int, Dump]:
    """The newest dump of each rank."""
    newest: Dict[int, Dump] = {}
    for path in _files(paths):
        with open(path, encoding="utf-8", errors="replace") as file:
            for dump in parse(file):
                if dump.rank not in newest or newest[dump.rank].time <= dump.time:
                    newest[dump.rank] = dump
    return newest


def _files(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            yield from sorted(glob.glob(os.path.join(glob.escape(path), "rank*.txt")))
        else:
            yield path


def _ranks(ranks: Iterable[int]) -> str:
    return ", ".join(str(r) for r in sorted(ranks)) or "none"


def lacking(dumps: Dict[int, Dump]) -> Dict[Key, Tuple[Dict[int, Record], List[int]]]:
    """Operations that are open on some ranks: where, and the ranks that have not come."""
    result: Dict[Key, Tuple[Dict[int, Record], List[int]]] = {}
    for rank, dump in dumps.items():
        for key, record in dump.open().items():
            result.setdefault(key, ({}, []))[0][rank] = record
    for key, (where, missing) in result.items():
        # In a set other than the global one, only those who ever used it are members.
        missing.extend(r for r, d in sorted(dumps.items()) if r not in where and
                       (key[0] == 0 or any(x.process_set == key[0] for x in d.records)))
    return result


def show(dumps: Dict[int, Dump], count: int, out: TextIO) -> None:
    end = max((d.time for d in dumps.values()), default=0.0)
    size = max((d.job_size for d in dumps.values()), default=0)
    print(f"{len(dumps)} of {size} ranks; no file of ranks: "
          f"{_ranks(set(range(size)) - set(dumps))}", file=out)
    for rank, dump in sorted(dumps.items()):
        print(f"\nrank {rank} on {dump.host}, pid {dump.pid}, {dump.why}, "
              f"{end - dump.time:.3f} s before the last file", file=out)
        for r in dump.records[-count:] if count > 0 else []:
            print(f"  {r.time - end:+12.6f} s  {r.event:6} {r.op} {r.name}"
                  f"  set {r.process_set}, {r.size} bytes, {r.status}", file=out)
    waits = lacking(dumps)
    print(f"\n{len(waits)} open operations", file=out)
    for (process_set, op, name), (where, missing) in sorted(
            waits.items(), key=lambda item: min(r.time for r in item[1][0].values())):
        since = end - min(r.time for r in where.values())
        print(f"  {op} {name}, set {process_set}: submitted by ranks {_ranks(where)} "
              f"({since:.3f} s ago), not by ranks {_ranks(missing)}", file=out)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m horovod.recorder",
        description="Shows the last operations of the ranks of a job.")
    parser.add_argument("files", nargs="+", metavar="FILE",
                        help="folders of jobs, or files of as many ranks as there are")
    parser.add_argument("-n", "--last", type=int, default=10, metavar="COUNT",
                        help="records to show of each rank (10)")
    options = parser.parse_args(arguments)
    try:
        dumps = read(options.files)
    except OSError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if not dumps:
        print(f"{parser.prog}: no flight recorder in these files", file=sys.stderr)
        return 1
    show(dumps, options.last, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
