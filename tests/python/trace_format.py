"""Checks a timeline against the Trace Event Format, as a viewer reads it.

The rules are those of the format's document for a JSON array of the phases that are used
here (M metadata, B and E duration, X complete, i instant), and those of the original's
timeline: one "process" per tensor, named before its first event.
"""
import json

PHASES = {"M": {"name", "pid", "args"}, "B": {"name", "ts", "pid"}, "E": {"ts", "pid"},
          "X": {"name", "ts", "pid", "dur"}, "i": {"name", "ts", "s"}}
OPTIONAL = {"B": {"args"}, "E": {"args"}, "X": {"args"}}
METADATA = {"process_name", "process_sort_index"}


def is_count(value):
    return type(value) is int and value >= 0


def check_fields(event):
    phase = event["ph"]
    fields = set(event) - {"ph"}
    assert PHASES[phase] <= fields <= PHASES[phase] | OPTIONAL.get(phase, set()), event
    assert all(is_count(event[key]) for key in ("ts", "pid", "dur") if key in event), event
    assert isinstance(event.get("name", ""), str), event
    assert isinstance(event.get("args", {}), dict), event
    assert phase != "i" or event["s"] == "g", event
    assert phase != "M" or event["name"] in METADATA, event


class Track:
    """The events of one process, in the order of the file."""

    def __init__(self, name):
        self.name, self.now, self.open, self.slices = name, 0, [], []

    def take(self, event):
        assert event["ts"] >= self.now, f"{self.name} goes back in time: {event}"
        self.now = event["ts"]
        if event["ph"] == "B":
            self.open.append(event)
            assert len(self.open) <= 2, f"{self.name}: an activity within an activity"
        elif event["ph"] == "E":
            assert self.open, f"{self.name}: an end without a beginning: {event}"
            begin = self.open.pop()
            self.slices.append((begin["name"], len(self.open), event["ts"] - begin["ts"],
                                event.get("args", {})))
        else:
            assert event["dur"] == 0 and event["name"].isdecimal(), event
            assert self.open and self.open[-1]["name"].startswith("NEGOTIATE_"), event


def tracks(text):
    """{name of a tensor: Track} of a complete timeline."""
    events = json.loads(text)
    assert [e["name"] for e in events[:2]] == ["process_name", "process_sort_index"]
    assert is_count(events[0]["args"]["start_time_since_epoch_in_micros"])
    result, now = {}, 0
    for event in events:
        check_fields(event)
        if event["ph"] == "M":
            name = event["args"].get("name")
            if name is not None:
                assert event["pid"] == len(result) + 1, "numbered as they appear"
                result[event["pid"]] = Track(name)
            elif event["name"] == "process_sort_index":
                assert event["args"] == {"sort_index": event["pid"]}
        elif event["ph"] == "i":
            assert event["name"] == "CYCLE_START" and event["ts"] >= now
            now = event["ts"]
        else:
            result[event["pid"]].take(event)        # KeyError: not named before
    by_name = {track.name: track for track in result.values()}
    assert len(by_name) == len(result), "a tensor has one track"
    assert not any(track.open for track in by_name.values()), "everything has ended"
    return by_name
