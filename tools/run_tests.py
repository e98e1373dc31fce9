#!/usr/bin/env python3
"""Runs the test stages one after the other and sums them up.

    tools/run_tests.py                     what `make test` runs
    tools/run_tests.py --stage asan ...    these stages only
    tools/run_tests.py --long              what `make test-long` runs

The stages of `make test` run in two lanes side by side, since the Python tests leave half
of two processors idle.  A line per test program with its time; the full output of every
stage lies in build/log/, that of a failure is shown.  Exit code 1 if a test failed, a stage
could not run or ran no test, or a process was left behind.  The last lines name what
failed, with the reason, so that the end of a log tells it; the very last is
`N passed, N failed`.
"""
import argparse
import collections
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = pathlib.Path(sys.executable).parent
LOGS = ROOT / "build" / "log"
CPUS = len(os.sched_getaffinity(0))
# Every process of this run inherits it: who still has it at the end was left behind.
MARK = f"RUN_TESTS_ID={os.getpid()}-{time.monotonic_ns()}"
LOAD_FACTOR = 3                         # of time limits: they end what hangs, and the
                                        # other lane or a busy host is no hang
SANITIZER_FACTOR = 6                    # sanitizers cost up to ten times
LONG_ROUNDS = {"HVD_CYCLES": "10000", "HVD_ROUNDS": "200", "HVD_SEEDS": "20000",
               "HVD_KILLS": "200", "HVD_LOAD_S": "60", "HVD_HOSTS": "256",
               "HVD_MANY_RANKS": "256", "HVD_MANY_KILLS": "20", "HVD_MANY_WORKERS": "1024"}
OUTPUT_LINES = 80                       # of a failure; the rest is in the log
REASON_CHARACTERS = 160                 # of a failure, in the last lines

SANITIZED = ["-Dbuildtype=debugoptimized", "-Doptimization=1", "-Db_lundef=false"]
# Everything compiles without a warning with both compilers: gcc and asan.
BUILDS = {
    "gcc": ("gcc", ["-Dwerror=true"]),
    "asan": ("clang", [*SANITIZED, "-Dwerror=true", "-Db_sanitize=address,undefined"]),
    "tsan": ("clang", [*SANITIZED, "-Dpython=false", "-Db_sanitize=thread"]),
    "fuzz": ("clang", [*SANITIZED, "-Dpython=false", "-Db_sanitize=address,undefined",
                       "-Dfuzz=true"]),
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:atexit_sleep_ms=0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
}


@dataclasses.dataclass
class Totals:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self):
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


class Broken(Exception):
    """The stage could not run."""


def environment(extra=()):
    result = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
    result.update(ENVIRONMENT)
    result.update(extra)
    result["PATH"] = f"{BIN}{os.pathsep}{result['PATH']}"
    name, _, value = MARK.partition("=")
    result[name] = value
    return result


def show(text, lines=OUTPUT_LINES):
    rows = text.rstrip().splitlines()
    if len(rows) > lines:
        print(f"        ... {len(rows) - lines} lines more in the log")
    for row in rows[-lines:]:
        print(f"        {row}")


FAILURES = []                           # what the last lines say


def failure(name, reason):
    reason = " ".join(reason.split())
    if len(reason) > REASON_CHARACTERS:
        reason = "... " + reason[-REASON_CHARACTERS:]
    FAILURES.append(f"FAILED {name}: {reason}")


def line(verdict, seconds, name, count=None):
    tests = f"{count:4d} tests" if count is not None else " " * 10
    print(f"  {verdict:7s} {seconds:7.1f} s {tests}  {name}", flush=True)


def run(command, log, limit_s, each_line=None, extra=()):
    """Runs a command in a process group of its own; (exit code, output).  The output goes
    to a file and not through a pipe, which a process left behind could keep open."""
    LOGS.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + limit_s
    with open(LOGS / log, "w+", errors="replace") as file:
        process = subprocess.Popen([str(c) for c in command], cwd=ROOT, stdout=file,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=environment(extra), start_new_session=True)
    timed_out = False
    with open(LOGS / log, errors="replace") as file:
        try:
            while process.poll() is None and time.monotonic() < deadline:
                follow(file, each_line)
                try:
                    process.wait(0.2)
                except subprocess.TimeoutExpired:
                    pass
        finally:                        # also when we are interrupted
            timed_out = end(process)
        follow(file, each_line)
    output = (LOGS / log).read_text(errors="replace")
    if timed_out:
        output += f"time limit of {limit_s} s passed\n"
    return (1 if timed_out else process.returncode), output


def follow(file, each_line):
    """Hands on the whole lines that have been written since the last call."""
    while each_line:
        at = file.tell()
        row = file.readline()
        if not row.endswith("\n"):
            file.seek(at)
            return
        each_line(row)


def end(process):
    """True if the process had to be ended; its group goes with it in any case."""
    running = process.poll() is None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    return running


def build(kind):
    """Configures and compiles build/<kind>; shows the output if that fails."""
    compiler, options = BUILDS[kind]
    directory = ROOT / "build" / kind
    start = time.monotonic()
    if not (directory / "build.ninja").exists():
        code, output = run(["meson", "setup", directory, "-Dtests=true", *options],
                           f"{kind}-setup.log", 300, extra={"CC": compiler})
        if code != 0:
            show(output)
            raise Broken(f"meson setup of build/{kind} failed")
    code, output = run(["ninja", "-C", directory], f"{kind}-build.log", 900)
    if code != 0:
        show(re.sub(r"^\[\d+/\d+\] .*\n", "", output, flags=re.M))
        raise Broken(f"build/{kind} does not compile")
    line("built", time.monotonic() - start, f"build/{kind} ({compiler})")
    return directory


# ---- C tests -----------------------------------------------------------------------------

ONE_TEST = re.compile(r"^(\S+)\s+(ok|skipped|FAILED.*) \([\d.]+ s\)$", re.M)
MESON_LINE = re.compile(r"^\s*\d+/(\d+) (?:\S+ / )?(\S+)\s+([A-Z]+)\s+([\d.]+)s")
GOOD = {"OK": "ok", "SKIP": "skipped"}


def count_tests(entry):
    """A program of tests/check.h says how each of its tests ended; others count as one."""
    totals = Totals()
    words = collections.Counter(w.split(":")[0] for _, w in
                                ONE_TEST.findall(entry.get("stdout") or ""))
    totals.passed, totals.skipped = words["ok"], words["skipped"]
    totals.failed = words["FAILED"]
    if entry["result"] not in GOOD:
        totals.failed = max(totals.failed, 1)
    elif not words:
        totals.passed = int(entry["result"] == "OK")
        totals.skipped = int(entry["result"] == "SKIP")
    return totals


def name_failures(kind, entry):
    """Of every failed test its name, and what the checks of the program complained of."""
    program = f"{kind} {entry['name'].split(' / ')[-1]}"
    text = entry.get("stderr") or ""
    complaints = re.findall(r"^\S+\.[ch]:\d+: .*", text, re.M)[:3]
    # Last, since the end is what remains of a long reason; also of a process of the test.
    complaints += re.findall(r"SUMMARY: \w*Sanitizer: (?:.*/src/)?(.*)|(\S+ runtime error: .*)",
                             text)[:1]
    reason = "; ".join(map("".join, complaints)) or entry["result"]
    names = [(n, w) for n, w in ONE_TEST.findall(entry.get("stdout") or "")
             if w.startswith("FAILED")]
    for name, word in names:
        failure(f"{program} {name}", f"{word}; {reason}")
    if not names:
        failure(program, reason)


def meson_test(kind, arguments, limit_s, factor=LOAD_FACTOR, extra=()):
    directory = build(kind)
    results = directory / "meson-logs" / "testlog.json"
    results.unlink(missing_ok=True)

    planned = 0

    def progress(row):
        nonlocal planned
        found = MESON_LINE.match(row)
        if found:
            count, name, result, seconds = found.groups()
            planned = int(count)
            line(GOOD.get(result, "FAILED"), float(seconds), name)

    code, output = run(["meson", "test", "-C", directory, "--no-rebuild", "-t", factor,
                        "--num-processes", CPUS, *arguments], f"{kind}-test.log", limit_s,
                       progress, {"CHECK_LIMIT_FACTOR": str(factor), **dict(extra)})
    totals = Totals()
    rows = results.read_text().splitlines() if results.exists() else []
    for entry in map(json.loads, rows):
        one = count_tests(entry)
        totals.add(one)
        if one.failed:
            name_failures(kind, entry)
            print(f"  {entry['name'].split(' / ')[-1]}: {entry['result']}")
            show((entry.get("stdout") or "") + (entry.get("stderr") or ""))
    if len(rows) < planned or (code != 0 and totals.failed == 0):
        show(output)
        raise Broken(f"meson test ended with {code} after {len(rows)} of {planned} programs")
    return totals


# The three of them and lint make one lane, the Python tests the other: whatever the machine
# does besides, `make test` ends within 90 minutes.
C_STAGE_S = 1500


def stage_c(_):
    """C tests; gcc, warnings are errors"""
    return meson_test("gcc", ["--no-suite", "long"], C_STAGE_S)


def stage_asan(_):
    """C tests under AddressSanitizer and UBSan; clang, warnings are errors"""
    return meson_test("asan", ["--no-suite", "long"], C_STAGE_S, SANITIZER_FACTOR)


def stage_tsan(_):
    """C tests under ThreadSanitizer; the simulator has one thread, so fewer seeds"""
    return meson_test("tsan", ["--no-suite", "long"], C_STAGE_S, SANITIZER_FACTOR,
                      {"HVD_SEEDS": "200"})


def stage_long(_):
    """soak: all C tests, more rounds, cycles and seeds, three times"""
    return meson_test("gcc", ["--repeat", "3"], 4 * 3600, 20, LONG_ROUNDS)


def script(path, log):
    start = time.monotonic()
    code, output = run([ROOT / path / "run"], log, 7200)
    line("ok" if code == 0 else "FAILED", time.monotonic() - start, path)
    if code != 0:
        failure(path, output)
        show(output)
    return Totals(passed=int(code == 0), failed=int(code != 0))


def stage_model(_):
    """models of the protocols, checked exhaustively"""
    return script("tests/model", "model.log")


def stage_fresh(_):
    """make demo and make test in a bare Debian root"""
    code, output = run([ROOT / "tools" / "setup.sh", "fresh"], "fresh-setup.log", 600)
    if code == 0:
        code, output = run([ROOT / "tools" / "fresh.sh"], "fresh.log", 7200,
                           lambda row: print(f"  {row}", end="", flush=True))
    if code != 0:
        failure("fresh", output)
        show(output)
    return Totals(passed=int(code == 0), failed=int(code != 0))


def stage_emulated(_):
    """kernels for processors that this machine is not"""
    return script("tests/emulated", "emulated.log")


# ---- Python tests ------------------------------------------------------------------------

def pytest(name, arguments, limit_s):
    report = LOGS / f"{name}.xml"
    report.unlink(missing_ok=True)
    code, output = run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                        f"--junitxml={report}", f"--timeout={120 * LOAD_FACTOR}",
                        *arguments], f"{name}.log", limit_s,
                       extra={"CHECK_LIMIT_FACTOR": str(LOAD_FACTOR)})
    if not report.exists():
        show(output)
        raise Broken(f"pytest ended with {code} before its report")
    totals = Totals()
    files = collections.defaultdict(lambda: [0.0, Totals()])
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        one = Totals()
        why = case.find("failure")
        if why is None:
            why = case.find("error")
        if why is not None:
            one.failed = 1
            failure(f"{case.get('classname')}.{case.get('name')}", why.get("message") or "")
        elif case.find("skipped") is not None:
            one.skipped = 1
        else:
            one.passed = 1
        at = files[case.get("classname", "").split(".Test")[0]]
        at[0] += float(case.get("time", 0))
        at[1].add(one)
        totals.add(one)
    for file, (seconds, one) in files.items():
        line("FAILED" if one.failed else "ok", seconds, file,
             one.passed + one.failed + one.skipped)
    if code != 0:
        show(output)
        totals.failed = max(totals.failed, 1)
    return totals


def stage_lint(_):
    """rules of the tree: layers, names, exports, documents"""
    build("gcc")
    return pytest("lint", ["tests/lint"], 300)


def stage_python(_):
    """Python tests"""
    return pytest("python", ["-m", "not long", "tests/python"], 4800)


def stage_python_long(_):
    """long Python tests"""
    code, output = run([sys.executable, "-m", "pytest", "-q", "-m", "long",
                        "--collect-only", "tests/python"], "python-long.log", 300)
    if code == 5:
        print("  there are none")
        return Totals(passed=1)
    return pytest("python-long", ["-m", "long", "tests/python"], 7200)


# ---- Fuzzing -----------------------------------------------------------------------------

def fuzz_one(directory, name, seconds):
    found = ROOT / "build" / "fuzz-found" / name
    found.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    code, output = run([directory / "tests" / "fuzz" / f"fuzz_{name}",
                        f"-max_total_time={seconds}", "-timeout=10", "-rss_limit_mb=2048",
                        f"-artifact_prefix={found.parent}/crash-{name}-", found,
                        ROOT / "tests" / "fuzz" / "corpus" / name],
                       f"fuzz-{name}.log", seconds + 120)
    return name, code, output, time.monotonic() - start


def stage_fuzz(options):
    """every fuzz target with libFuzzer, AddressSanitizer and UBSan"""
    directory = build("fuzz")
    targets = json.loads(subprocess.run(
        [BIN / "meson", "introspect", "--targets", directory], check=True,
        capture_output=True, text=True, env=environment()).stdout)
    names = sorted(t["name"][5:] for t in targets if t["name"].startswith("fuzz_"))
    totals = Totals()
    with concurrent.futures.ThreadPoolExecutor(CPUS) as pool:
        jobs = [pool.submit(fuzz_one, directory, n, options.fuzz_seconds) for n in names]
        for job in concurrent.futures.as_completed(jobs):
            name, code, output, seconds = job.result()
            line("ok" if code == 0 else "FAILED", seconds, f"fuzz/{name}")
            totals.add(Totals(passed=int(code == 0), failed=int(code != 0)))
            if code != 0:
                failure(f"fuzz/{name}", output)
                show(output)
    return totals


# ---- All of it ---------------------------------------------------------------------------

STAGES = {
    "c": stage_c, "lint": stage_lint, "asan": stage_asan, "tsan": stage_tsan,
    "python": stage_python, "fuzz": stage_fuzz, "long": stage_long,
    "python-long": stage_python_long, "model": stage_model, "emulated": stage_emulated,
    "fresh": stage_fresh,
}
LANES = {"C": ["c", "lint", "asan", "tsan"], "Python": ["python"]}
LONG = ["fresh", "long", "python-long", "model", "emulated", "fuzz"]


def run_stage(name, options):
    stage = STAGES[name]
    print(f"{name}: {stage.__doc__}", flush=True)
    start, cpu = time.monotonic(), cpu_s()
    try:
        totals = stage(options)
        if totals.passed + totals.failed == 0:
            raise Broken("no test ran")
    except Broken as why:
        print(f"  FAILED: {why}")
        failure(name, str(why))
        totals = Totals(failed=1)
    left = left_behind()
    if left:
        print("  FAILED: processes left behind")
        failure(name, f"left behind: {', '.join(left)}")
        show("\n".join(left))
        totals.failed += 1
    print(f"{name}: {totals} in {time.monotonic() - start:.0f} s, "
          f"{cpu_s() - cpu:.0f} s of CPU\n", flush=True)
    return totals


def cpu_s():
    """CPU time of all processes that have ended: what a stage costs on a quiet machine."""
    times = os.times()
    return times.children_user + times.children_system


def left_behind(grace_s=10):
    """Ends and names the processes that carry our mark and should be gone.  They get some
    time to finish: a worker that was killed may still be on its way out, and the machine
    busy with the other lane."""
    deadline = time.monotonic() + grace_s
    while (found := marked_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return list(found.values())


def marked_processes():
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = f"pid {entry.name}: {command}"
        except OSError:
            continue
    return found


LAST_LINE = re.compile(r"(\d+) passed, (\d+) failed$")


def run_lane(name, stages, totals, lock, processes):
    """Runs this program for the stages of a lane and hands on what it says."""
    command = [sys.executable, __file__]
    for stage in stages:
        command += ["--stage", stage]
    last, at_the_end = "", []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        processes.append(process)
        for row in process.stdout:
            last = row
            if row.startswith("FAILED "):
                at_the_end.append(row.rstrip())
            with lock:
                print(f"{name:6s} | {row}", end="", flush=True)
    found = LAST_LINE.match(last)
    with lock:
        FAILURES.extend(at_the_end)
        if found:
            totals.add(Totals(*map(int, found.groups())))
        else:
            failure(f"lane {name}", f"ended with {process.returncode}: {last}")
            totals.add(Totals(failed=1))


def run_lanes():
    totals, lock, processes = Totals(), threading.Lock(), []
    lanes = [threading.Thread(target=run_lane, args=(name, stages, totals, lock, processes))
             for name, stages in LANES.items()]
    try:
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()
    finally:
        for process in processes:          # they end what they started
            process.terminate()
    return totals


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stage", action="append", choices=STAGES)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--fuzz-seconds", type=int, default=600)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Tests abort processes; the other lane would find their cores among the sources.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:       # nohup is for us ...
        signal.signal(signal.SIGHUP, lambda *_: None)           # ... tests send it
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:       # a shell's background job
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if subprocess.run([ROOT / "tools" / "setup.sh", "check"]).returncode != 0:
        print("0 passed, 1 failed")
        sys.exit(1)
    totals = Totals()
    start = time.monotonic()
    if not options.stage and not options.long:
        totals.add(run_lanes())
    for name in options.stage or (LONG if options.long else []):
        totals.add(run_stage(name, options))
    print(f"all stages: {totals} in {time.monotonic() - start:.0f} s")
    for row in FAILURES:
        print(row)
    print(f"{totals.passed} passed, {totals.failed} failed")
    sys.exit(totals.failed > 0)


if __name__ == "__main__":
    main()
