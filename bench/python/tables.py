"""The tables of compare.py: from the rows of all launches to what is printed, and summaries."""
import statistics


def short(count):
    for unit, bits in (("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count >> bits} {unit}"
    return f"{count} B"


def figure(x):
    if x is None:
        return "-"
    return f"{x:.2f}" if abs(x) < 10 else f"{x:.1f}" if abs(x) < 100 else f"{x:.0f}"


def pair(values):
    """floor (median)"""
    return f"{figure(min(values))} ({figure(statistics.median(values))})" if values else "-"


def ratio(peer, ours):
    return f"{peer / ours:.2f}" if peer and ours and ours > 0 else "-"


def table(head, body):
    if not body:
        return
    lines = [[str(x) for x in row] for row in [head, *body]]
    width = [max(len(row[k]) for row in lines) for k in range(len(head))]
    for number, row in enumerate(lines):
        print("| " + " | ".join(x.ljust(w) for x, w in zip(row, width)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (w + 2) for w in width) + "|")
    print()


def of_part(rows, part):
    return [r for r in rows if r["part"] == part and not r.get("missing")]


def names_in(rows, first):
    found = {r["system"] for r in rows}
    return [first] * (first in found) + sorted(found - {first})


def select(rows, **wanted):
    return [r for r in rows if all(r.get(k) == v for k, v in wanted.items())]


def ops_line(rows, names, ours, sums):
    """Cells of one operation, size and number of ranks; adds to the summaries."""
    floor, median, cells = {}, {}, []
    for name in names:
        found = select(rows, system=name)
        values = [r["median_us"] for r in found]
        cells.append(pair(values))
        if values:
            floor[name], median[name] = min(values), statistics.median(values)
            sums.append(dict(part="ops", system=name, ranks=found[0]["ranks"],
                             op=found[0]["op"], bytes=found[0]["bytes"], floor_us=floor[name],
                             median_us=median[name], worst_us=max(values),
                             launches=len(values), sample_us=min(r["floor_us"] for r in found)))
    peers = [n for n in floor if n != ours]
    best = min(peers, key=floor.get, default=None)
    best_median = min((median[n] for n in peers), default=None)
    return [*cells, best or "-", ratio(floor.get(best), floor.get(ours)),
            ratio(best_median, median.get(ours))]


def show_ops(rows, ours):
    rows = of_part(rows, "ops")
    names, sums = names_in(rows, ours), []
    if not rows:
        return sums
    print("## Operations, us: floor (median)\n")
    print("Floor: the best launch's median; median: over the launches. Ratios: best peer / "
          f"{ours or 'ours'}, above 1 when ours is faster.\n")
    for n in sorted({r["ranks"] for r in rows}):
        body = []
        for op in dict.fromkeys(r["op"] for r in rows):
            here = select(rows, ranks=n, op=op)
            for count in sorted({r["bytes"] for r in here}):
                body.append([op, short(count),
                             *ops_line(select(here, bytes=count), names, ours, sums)])
        print(f"### {n} ranks\n")
        table(["operation", "bytes", *names, "best peer", "floor ratio", "median ratio"], body)
    return sums


def step_line(rows, names, ours, sums):
    """Cells of one model and number of ranks."""
    plain = [r["step_ms"] for r in select(rows, system="plain")]
    cells, over, paired = [pair(plain)], {}, {}
    for name in names:
        found = select(rows, system=name)
        if not found:
            cells += ["-", "-", "-"]
            continue
        steps = [r["step_ms"] for r in found]
        paired[name] = statistics.median(r["step_ms"] - r["beside_ms"] for r in found)
        low = min(steps) - min(plain) if plain else None
        over[name] = statistics.median(steps) - statistics.median(plain) if plain else None
        cells += [pair(steps), f"{figure(low)} ({figure(over[name])})", figure(paired[name])]
        sums.append(dict(part="step", system=name, model=found[0]["model"],
                         ranks=found[0]["ranks"], step_floor_ms=min(steps),
                         step_median_ms=statistics.median(steps), overhead_floor_ms=low,
                         overhead_median_ms=over[name], overhead_paired_ms=paired[name],
                         plain_floor_ms=min(plain) if plain else None, launches=len(steps)))

    def against(values):
        peers = [v for k, v in values.items() if k != ours and v is not None]
        return ratio(min(peers, default=None), values.get(ours))
    return [*cells, f"{against(over)}, {against(paired)}"]


def show_step(rows, ours):
    rows = of_part(rows, "step")
    names, sums, body = [x for x in names_in(rows, ours) if x != "plain"], [], []
    if not rows:
        return sums
    print("## Training step, ms per step\n")
    print("plain: no communication, no library. Overhead: step - plain, floors (medians). Paired: "
          "median of step - plain step beside it in the same launch.\n"
          "Ratio: overhead of the best peer / ours (medians, paired).\n")
    for model in sorted({r["model"] for r in rows}):
        for n in sorted({r["ranks"] for r in rows}):
            here = select(rows, model=model, ranks=n)
            if here:
                body.append([f"{model}: {here[0]['words']}", n,
                             *step_line(here, names, ours, sums)])
    head = ["model", "ranks", "plain"]
    for name in names:
        head += [name, f"{name} overhead", "paired"]
    table(head + ["ratio"], body)
    return sums


def show_idle(rows, ours):
    rows = of_part(rows, "idle")
    body, sums = [], []
    if not rows:
        return sums
    print("## Idle job\n")
    print("After init and one allreduce: CPU of the worst rank in per cent of one CPU; slowdown of "
          "a two-thread matrix product in rank 0 by init. Medians.\n")
    keys = ["cpu_percent_max", "switches_per_s", "threads", "peak_rss_mib", "slowdown_percent"]
    for name in names_in(rows, ours):
        for n in sorted({r["ranks"] for r in rows}):
            found = select(rows, system=name, ranks=n)
            if found:
                row = {k: statistics.median(r[k] for r in found) for k in keys}
                sums.append(dict(part="idle", system=name, ranks=n, **row))
                body.append([name, n, f"{row['cpu_percent_max']:.3f}",
                             *(figure(row[k]) for k in keys[1:])])
    table(["system", "ranks", "CPU %", "switches/s", "threads", "peak RSS MiB", "slowdown %"],
          body)
    return sums


def show_start(rows, ours):
    rows = of_part(rows, "start")
    body, sums, heavy = [], [], []
    if not rows:
        return sums
    print("## Start, s: best (median)\n")
    print("true: launcher with `true`; script: with an empty Python script; first: launch to the "
          "end of the first allreduce on the last rank, and its parts. gloo: torchrun.\n")
    keys = ["true_s", "script_s", "first_s", "python_s", "imports_s", "init_s"]
    for name in names_in(rows, ours):
        for n in sorted({r["ranks"] for r in rows}):
            found = [r for r in select(rows, system=name, ranks=n) if "weight" not in r]
            if not found:
                continue
            values = {k: [r[k] for r in found if r.get(k) is not None] for k in keys}
            body.append([name, n, *(f"{min(v):.3f} ({statistics.median(v):.3f})" if v else "-"
                                    for v in values.values())])
            sums.append(dict(part="start", system=name, ranks=n,
                             **{k: min(v, default=None) for k, v in values.items()}))
        heavy += [[name, *r["weight"].values()] for r in select(rows, system=name)
                  if r.get("weight")]
    table(["system", "ranks", "true", "script", "first", "until Python", "imports", "init"], body)
    print("The launcher while 8 ranks sleep (all its processes, the ranks not counted):\n")
    table(["system", "processes", "threads", "RSS MiB", "PSS MiB", "CPU %"], heavy)
    return sums


def show(rows, ours):
    """Prints what there is; one summary per line of the tables."""
    return (show_ops(rows, ours) + show_step(rows, ours) + show_idle(rows, ours)
            + show_start(rows, ours))
