#!/usr/bin/env python3
"""Draws what bench/run has measured: one SVG per transport and number of ranks, time over bytes.

    bench/run --json out.jsonl && bench/plot.py out.jsonl docs/img

Both axes are logarithmic; a point is the floor of a system over the rounds.  No library is needed,
and a reader's browser loads nothing else.
"""
import collections
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 380, 64, 44, 150, 52
COLOURS = ["#0969da", "#1a7f37", "#bc4c00", "#8250df", "#57606a", "#bf3989"]
TITLES = {"shm": "one host", "tcp": "TCP, loopback", "netns": "TCP between namespaces"}
BYTES = ["B", "KiB", "MiB", "GiB"]


def shown_bytes(n):
    k = min(int(math.log(n, 1024)), 3) if n > 0 else 0
    return f"{n // 1024 ** k} {BYTES[k]}"


def shown_us(us):
    return f"{us:g} us" if us < 1000 else f"{us / 1000:g} ms" if us < 1e6 else f"{us / 1e6:g} s"


def read(path):
    """{(transport, operation, ranks): {system: {bytes: floor in us}}}"""
    plots = collections.defaultdict(lambda: collections.defaultdict(dict))
    for line in pathlib.Path(path).read_text().splitlines():
        row = json.loads(line)
        if "op" not in row or not row.get("ok", True):
            continue
        points = plots[row.get("over", "shm"), row["op"], row["ranks"]][row["system"]]
        us = row["us"] if row["system"] == "limit" else row["median_us"]
        points[row["bytes"]] = min(us, points.get(row["bytes"], math.inf))
    return plots


def draw(title, systems):
    sizes = sorted({n for points in systems.values() for n in points})
    times = [us for points in systems.values() for us in points.values()]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    left, right = math.log2(sizes[0]), max(math.log2(sizes[-1]), math.log2(sizes[0]) + 1)

    def x(n):
        return LEFT + (math.log2(n) - left) / (right - left) * (WIDTH - LEFT - RIGHT)

    def y(us):
        return HEIGHT - BOTTOM - (math.log10(us) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           f'width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{title}" '
           'font-family="system-ui, sans-serif" font-size="12" fill="#24292f">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#fff"/>',
           f'<text x="{LEFT}" y="26" font-size="15" font-weight="600">{title}</text>']
    for power in range(low, high + 1):
        at = y(10 ** power)
        out += [f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#d0d7de"/>',
                f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">'
                f'{shown_us(10 ** power)}</text>']
    for n in sizes[::2] if len(sizes) > 7 else sizes:
        out.append(f'<text x="{x(n):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
                   f'{shown_bytes(n)}</text>')
    ends = []
    for (name, points), colour in zip(sorted(systems.items()), COLOURS * 3):
        path = "L".join(f"{x(n):.1f} {y(us):.1f}" for n, us in sorted(points.items()))
        wide = 2.5 if name.startswith("hvd") else 1.5       # ours
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{wide}"/>')
        out += [f'<circle cx="{x(n):.1f}" cy="{y(us):.1f}" r="2.5" fill="{colour}"/>'
                for n, us in points.items()]
        ends.append([y(points[max(points)]), name, colour])
    at = 0.0
    for end in sorted(ends):            # labels do not lie on each other
        at = max(end[0], at + 15)
        out.append(f'<text x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}" fill="{end[2]}">'
                   f'{end[1]}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    source, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for (over, op, ranks), systems in read(source).items():
        if len({n for points in systems.values() for n in points}) < 2:
            continue                    # a single size is a table, not a plot
        path = folder / f"bench-{over}-{op}-{ranks}.svg"
        path.write_text(draw(f"{op.replace('_in', ' in place')}, {ranks} ranks, "
                             f"{TITLES.get(over, over)}", systems))
        print(path)


if __name__ == "__main__":
    main()
