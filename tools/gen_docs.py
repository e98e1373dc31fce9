#!/usr/bin/env python3
"""Writes docs/config.md from src/base/config.def, where every variable is declared once.

    tools/gen_docs.py             writes the page
    tools/gen_docs.py --check     exit code 1 if the page is not up to date
"""
import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "base" / "config.def"
PAGE = ROOT / "docs" / "config.md"

FIELDS = ["type", "field", "name", "default", "low", "high", "flags", "option", "key",
          "text"]
# A piece of a row: a string with its escapes, or anything up to the next comma.
PIECE = re.compile(r'\s*((?:"(?:[^"\\]|\\.)*"\s*)+|[^,"]+?)\s*(?:,|$)')
CHAPTERS = [
    ("Settings", lambda f: not f & {"IDENTITY", "IGNORED", "HIDDEN"}),
    ("Who this process is (set by the launcher)", lambda f: "IDENTITY" in f),
    ("Accepted without effect on CPU jobs", lambda f: "IGNORED" in f),
]
INTRODUCTION = """\
# Configuration

Written by `tools/gen_docs.py` from `src/base/config.def`; do not edit.

A variable is read when `hvd.init()` runs. `horovodrun` sets it from its option or from the
key of `--config-file`; an option wins over the file. A value outside its range fails at
`hvd.init()` with the allowed range; an unknown `HOROVOD_*` name is reported with the
nearest known one. Sizes take `kb`, `mb`, `gb`; booleans `1`/`0`, `true`/`false`,
`yes`/`no`, `on`/`off`, and their option has a `--no-` form. *Tunable*:
`HOROVOD_AUTOTUNE` may change it.
"""


def rows(text):
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    for body in re.findall(r"^CONFIG\((.*?)\)$", text, re.S | re.M):
        pieces = [m[1].strip() for m in PIECE.finditer(body)]
        if len(pieces) != len(FIELDS):
            sys.exit(f"{SOURCE.name}: {len(pieces)} columns in: {body}")
        row = dict(zip(FIELDS, pieces))
        for name in ("name", "default", "option", "key", "text"):
            row[name] = ast.literal_eval(row[name])
        row["flags"] = {w for w in re.split(r"[ |]+", row["flags"]) if w != "0"}
        yield row


def number(text):
    """The value of a C constant such as 4ULL << 30."""
    return eval(re.sub(r"(?<=\d)U?L+\b", "", text), {"__builtins__": {}})


def in_bytes(value):
    units = ["", "kb", "mb", "gb"]
    while value and value % 1024 == 0 and len(units) > 1:
        value //= 1024
        units.pop(0)
    return f"{value}{units[0]}"


def allowed(row):
    if row["type"] == "boolean":
        return "boolean"
    if row["type"] == "text":
        return f"text, up to {number(row['high'])}"
    low, high = number(row["low"]), number(row["high"])
    if row["type"] == "bytes":
        return f"{in_bytes(low)} to {in_bytes(high)}"
    return f"{row['type']}, {low} to {high}"


def option(row):
    if not row["option"]:
        return ""
    return f"`--{row['option']}`" + (f"<br>`{row['key']}`" if row["key"] else "")


def page(table):
    lines = [INTRODUCTION]
    for title, belongs in CHAPTERS:
        lines += [f"## {title}", "",
                  "| variable | default | values | option, key | meaning |",
                  "|---|---|---|---|---|"]
        for row in table:
            if not belongs(row["flags"]) or "HIDDEN" in row["flags"]:
                continue
            default = f"`{row['default']}`" if row["default"] else ""
            text = row["text"].replace("|", "\\|")
            text += " *Tunable.*" if "TUNABLE" in row["flags"] else ""
            lines.append(f"| `HOROVOD_{row['name']}` | {default} | {allowed(row)} | "
                         f"{option(row)} | {text} |")
        lines.append("")
    return "\n".join(lines)


def main():
    text = page(list(rows(SOURCE.read_text())))
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        sys.exit("docs/config.md is not up to date: run tools/gen_docs.py")


if __name__ == "__main__":
    main()
