"""Puts the timelines of all ranks on one clock, and says in words where the time goes.

    python -m horovod.timeline merge timeline.json -o merged.json
    python -m horovod.timeline summary timeline.json

A job with ``HOROVOD_TIMELINE=timeline.json`` and ``HOROVOD_TIMELINE_ALL_RANKS=1`` writes
``timeline.json`` (rank 0) and ``timeline.json.<rank>``; give the first, or all of them by name (of
other hosts, too). The merged file opens in Perfetto and chrome://tracing: a process per rank, a row
per tensor.

Clocks of hosts differ. An operation that needs all ranks ends on all of them within the time of a
message, so the median of the differences of its ends is the offset of a clock; where there are
enough of them, early and late ones give its drift. Less than a millisecond is left as it is: that
may be the operation itself.
"""
import argparse
import glob
import json
import os
import re
import statistics
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Sequence, TextIO, Tuple

# They end nowhere before all ranks have come; a broadcast may, at its root.
_MEETINGS = {"ALLREDUCE", "ALLGATHER", "ALLTOALL", "REDUCESCATTER", "BARRIER"}
_LEAST_OFFSET_US = 1000.0
_DRIFT_SAMPLES = 60                     # fewer tell an offset, but no drift

Key = Tuple[str, int]                   # tensor, how often it came before


@dataclass
class Slice:
    """One operation on one rank: its negotiation and its run; microseconds of its rank's clock."""
    tensor: str
    kind: str
    start: float                        # of the negotiation; of the run where there was none
    run: Optional[float] = None         # None: it never ran
    end: float = 0.0
    ready: List[Tuple[float, int]] = field(default_factory=list)    # (when, member)


@dataclass
class Timeline:
    """What one rank has written."""
    rank: int
    path: str
    events: List[Dict[str, Any]]
    names: Dict[int, str]               # of tensors, by the pid of the events
    epoch: float                        # wall clock at ts 0
    slices: List[Slice] = field(default_factory=list)
    offset: float = 0.0                 # its clock less that of the first rank, at ts 0
    drift: float = 0.0                  # of the offset, per microsecond

    def time(self, ts: float) -> float:
        """On the clock of the first rank."""
        return self.epoch + ts - self.offset - self.drift * ts


def _slices(events: Iterable[Dict[str, Any]], names: Dict[int, str]) -> List[Slice]:
    result: List[Slice] = []
    current: Dict[int, Slice] = {}
    depth: Counter = Counter()
    for event in events:
        pid, phase = event.get("pid", 0), event["ph"]
        if pid not in names or phase not in "BEX":
            continue
        if phase == "B":
            depth[pid] += 1
            kind = event["name"]
            if depth[pid] == 1 and kind.startswith("NEGOTIATE_"):
                current[pid] = Slice(names[pid], kind[len("NEGOTIATE_"):], event["ts"])
            elif depth[pid] == 1:
                slot = current.setdefault(pid, Slice(names[pid], kind, event["ts"]))
                slot.run = event["ts"]
        elif phase == "E":
            depth[pid] -= 1
            if depth[pid] == 0 and pid in current and current[pid].run is not None:
                slot = current.pop(pid)
                slot.end = event["ts"]
                result.append(slot)
        elif pid in current and event["name"].isdecimal():
            current[pid].ready.append((event["ts"], int(event["name"])))
    return result


def read(path: str, rank: int) -> Timeline:
    """The timeline in a file. ValueError: it holds none."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)
    if not isinstance(events, list) or not events or \
            "start_time_since_epoch_in_micros" not in events[0].get("args", {}):
        raise ValueError(f"{path}: not a timeline of horovod")
    names = {e["pid"]: e["args"]["name"] for e in events
             if e["ph"] == "M" and e["name"] == "process_name" and "name" in e["args"]}
    result = Timeline(rank, path, events, names,
                      float(events[0]["args"]["start_time_since_epoch_in_micros"]))
    result.slices = _slices(events, names)
    return result


def find(paths: Sequence[str]) -> List[Timeline]:
    """The timelines of all ranks: of the files, and of those beside a single one."""
    if len(paths) == 1:
        paths = [paths[0], *glob.glob(glob.escape(paths[0]) + ".*")]
    found = {}
    for path in paths:
        number = re.search(r"\.(\d+)$", path)
        if os.path.exists(path) and (number or path == paths[0] or not path[-1].isdigit()):
            rank = int(number[1]) if number else 0
            found[rank] = read(path, rank)
    return [found[rank] for rank in sorted(found)]


def _by_turn(timeline: Timeline) -> Dict[Key, Slice]:
    """The operations by tensor and turn: the n-th of a name is the same on all ranks."""
    turns: Counter = Counter()
    result = {}
    for slot in timeline.slices:
        result[slot.tensor, turns[slot.tensor]] = slot
        turns[slot.tensor] += 1
    return result


def correct_clocks(timelines: Sequence[Timeline]) -> None:
    """Finds offset and drift of each clock, against the first rank."""
    if not timelines:
        return
    first = _by_turn(timelines[0])
    for other in timelines[1:]:
        pairs = sorted(
            (slot.end, (other.epoch + slot.end) - (timelines[0].epoch + first[key].end))
            for key, slot in _by_turn(other).items()
            if key in first and slot.kind in _MEETINGS)
        other.offset = other.drift = 0.0
        if not pairs:
            continue
        median = statistics.median(d for _, d in pairs)
        if abs(median) < _LEAST_OFFSET_US:
            continue
        other.offset = median
        if len(pairs) >= _DRIFT_SAMPLES:
            third = len(pairs) // 3
            (t0, d0), (t1, d1) = (
                (statistics.median(t for t, _ in part), statistics.median(d for _, d in part))
                for part in (pairs[:third], pairs[-third:]))
            if t1 > t0:
                other.drift = (d1 - d0) / (t1 - t0)
                other.offset = d0 - other.drift * t0


def merge(timelines: Sequence[Timeline]) -> List[Dict[str, Any]]:
    """The events of all, as a Chrome trace: a process per rank, a thread per tensor."""
    correct_clocks(timelines)
    begin = min(t.time(0) for t in timelines)
    tensors: Dict[str, int] = {}
    result: List[Dict[str, Any]] = []
    for timeline in timelines:
        pid = timeline.rank
        result.append({"ph": "M", "name": "process_name", "pid": pid,
                       "args": {"name": f"rank {pid}"}})
        result.append({"ph": "M", "name": "process_sort_index", "pid": pid,
                       "args": {"sort_index": pid}})
        for name in timeline.names.values():
            tid = tensors.setdefault(name, len(tensors) + 1)
            result.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid,
                           "args": {"name": name}})
        for event in timeline.events:
            if event["ph"] not in "BEXi":
                continue
            tid = tensors.get(timeline.names.get(event.get("pid", 0), ""), 0)
            result.append({**event, "pid": pid, "tid": tid,
                           "ts": round(timeline.time(event["ts"]) - begin, 3)})
    return result


# ---- in words ----------------------------------------------------------------------------------


@dataclass
class Meeting:
    """One operation on all ranks that have written of it."""
    key: Key
    kind: str
    starts: Dict[int, float]            # by rank, on one clock
    end: float

    @property
    def last(self) -> int:
        return max(self.starts, key=lambda rank: self.starts[rank])

    @property
    def late_us(self) -> float:
        """From the last but one to the last: what this rank alone delays."""
        order = sorted(self.starts.values())
        return order[-1] - order[-2] if len(order) > 1 else 0.0

    @property
    def waited_us(self) -> float:
        """All ranks together, for the last one."""
        return sum(max(self.starts.values()) - start for start in self.starts.values())


def meetings(timelines: Sequence[Timeline]) -> List[Meeting]:
    """The operations, by their end. Of a single file the ticks tell when the others came."""
    result = []
    turns = {t.rank: _by_turn(t) for t in timelines}
    for key in {key for slots in turns.values() for key in slots}:
        slots = [(t, turns[t.rank][key]) for t in timelines if key in turns[t.rank]]
        starts = {t.rank: t.time(slot.start) for t, slot in slots}
        if len(timelines) == 1:
            starts.update({member: timelines[0].time(ts) for ts, member in slots[0][1].ready})
        result.append(Meeting(key, slots[0][1].kind, starts,
                              max(t.time(slot.end) for t, slot in slots)))
    return sorted(result, key=lambda m: m.end)


def _period(found: Sequence[Meeting]) -> Tuple[str, List[float]]:
    """The tensor that marks the steps, and what they took: the one that comes as often as most
    others do, and last among them."""
    counts = Counter(m.key[0] for m in found)
    if not counts:
        return "", []
    usual = Counter(counts.values()).most_common(1)[0][0]
    name = [m.key[0] for m in found if counts[m.key[0]] == usual][-1]
    ends = [m.end for m in found if m.key[0] == name]
    return name, [b - a for a, b in zip(ends, ends[1:])]


def _ms(us: float) -> str:
    return f"{us / 1000:.1f} ms" if us >= 100 else f"{us:.0f} us"


def summary(timelines: Sequence[Timeline], out: TextIO = sys.stdout) -> None:
    """How much of a step is waiting, for whom, and for which tensors."""
    correct_clocks(timelines)
    found = meetings(timelines)
    if not found:
        print("no operation in the timeline", file=out)
        return
    mark, steps = _period(found)
    begin, end = min(min(m.starts.values()) for m in found), found[-1].end
    print(f"{len(found)} operations of {len({m.key[0] for m in found})} tensors in "
          f"{(end - begin) / 1e6:.2f} s, timelines of {len(timelines)} ranks", file=out)
    for timeline in timelines[1:]:
        if timeline.offset:
            print(f"the clock of rank {timeline.rank} is {_signed_ms(timeline.offset)} "
                  f"that of rank {timelines[0].rank}: corrected", file=out)
    count = len(steps) + 1
    step = statistics.median(steps) if steps else end - begin
    if steps:
        print(f"a step takes {_ms(step)} (median of {len(steps)}, from one {mark} to the next)",
              file=out)
    ranks = max(len(m.starts) for m in found)
    waiting = sum(m.waited_us for m in found) / ranks / count
    share = min(waiting / step, 1.0) if step > 0 else 0.0
    print(f"a rank waits {_ms(waiting)} of it for others: {share:.0%}", file=out)
    _blame_ranks(found, count, out)
    _blame_tensors(found, count, out)


def _signed_ms(us: float) -> str:
    return f"{abs(us) / 1000:.1f} ms {'ahead of' if us > 0 else 'behind'}"


def _blame_ranks(found: Sequence[Meeting], count: int, out: TextIO) -> None:
    late: Dict[int, float] = defaultdict(float)
    last: Counter = Counter()
    for m in found:
        late[m.last] += m.waited_us
        last[m.last] += 1
    total = sum(late.values())
    for rank in sorted(late, key=lambda r: -late[r])[:3]:
        if total <= 0 or late[rank] < 0.05 * total:
            continue
        print(f"  for rank {rank}: {late[rank] / total:.0%} of the waiting; it is the last in "
              f"{last[rank] / len(found):.0%} of the operations, and holds the others up "
              f"by {_ms(sum(m.late_us for m in found if m.last == rank) / count)} a step",
              file=out)


def _blame_tensors(found: Sequence[Meeting], count: int, out: TextIO) -> None:
    waited: Dict[str, float] = defaultdict(float)
    for m in found:
        waited[m.key[0]] += m.waited_us
    total = sum(waited.values())
    for name in sorted(waited, key=lambda n: -waited[n])[:5]:
        if total <= 0 or waited[name] < 0.02 * total:
            continue
        worst = Counter(m.last for m in found if m.key[0] == name).most_common(1)[0][0]
        print(f"  in {name}: {waited[name] / total:.0%} of the waiting, most often for rank "
              f"{worst}", file=out)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m horovod.timeline",
                                     description="Timelines of all ranks on one clock.")
    parser.add_argument("command", choices=["merge", "summary"],
                        help="merge: one file for Perfetto, and the summary; summary: where the "
                             "time goes, in words")
    parser.add_argument("files", nargs="+", help="timeline.json: those of other ranks beside it "
                                                 "are found; or the files of all ranks")
    parser.add_argument("-o", "--output", help="of merge; default: <first file>.merged.json")
    args = parser.parse_args(argv)
    try:
        timelines = find(args.files)
    except (OSError, ValueError, KeyError) as error:
        print(f"horovod.timeline: {error}", file=sys.stderr)
        return 1
    if not timelines:
        print(f"horovod.timeline: {args.files[0]}: no such file", file=sys.stderr)
        return 1
    if args.command == "merge":
        output = args.output or re.sub(r"\.json$", "", args.files[0]) + ".merged.json"
        with open(output, "w", encoding="utf-8") as file:
            json.dump({"traceEvents": merge(timelines), "displayTimeUnit": "ms"}, file)
        print(f"{output}: {len(timelines)} ranks; open it in https://ui.perfetto.dev or "
              "chrome://tracing")
    summary(timelines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
