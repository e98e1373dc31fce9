"""The tools themselves: what the driver counts, what make promises."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest.mock
import xml.dom.minidom

from tree import ROOT, TreeTest

sys.path.insert(0, str(ROOT / "tools"))
import gen_docs  # noqa: E402
import run_tests  # noqa: E402

OUTPUT = """\
sum_of_two_ranks                      ok (0.01 s)
a_lost_peer_is_named                  FAILED: time limit (20.00 s)
needs_a_gpu                           skipped (0.00 s)
"""

# How tests start programs by name, and the names that need no package.
CALLS = re.compile(r"""(?:subprocess\.(?:run|Popen|check_output|check_call)\(\s*\[|which\(|"""
                   r"""execlp\(|lose_each_other\(r, )["']([a-z][a-z0-9_.-]*)""")
EVERYWHERE = {"bash", "sh", "env", "cat", "true", "sleep", "make", "gcc",
              "horovodrun", "jsrun", "mpirun", "ssh-keygen"}


class Driver(TreeTest):
    def count(self, **entry):
        return str(run_tests.count_tests(entry))

    def test_every_test_of_a_program_counts(self):
        self.assertEqual(self.count(result="FAIL", stdout=OUTPUT),
                         "1 passed, 1 failed, 1 skipped")

    def test_other_programs_count_as_one(self):
        self.assertEqual(self.count(result="OK", stdout="12 inputs\n"),
                         "1 passed, 0 failed")
        self.assertEqual(self.count(result="SKIP"), "0 passed, 0 failed, 1 skipped")

    def test_a_program_that_dies_after_its_tests_has_failed(self):
        text = OUTPUT.splitlines(keepends=True)[0]
        self.assertEqual(self.count(result="ERROR", stdout=text), "1 passed, 1 failed")
        self.assertEqual(self.count(result="TIMEOUT"), "0 passed, 1 failed")

    def test_a_stage_without_tests_has_failed(self):
        with unittest.mock.patch.dict(run_tests.STAGES, none=lambda _: run_tests.Totals()):
            self.assertEqual(run_tests.run_stage("none", None).failed, 1)

    def test_a_lane_that_ends_without_a_sum_has_failed(self):
        with unittest.mock.patch.dict(run_tests.LANES, {"x": ["no such stage"]}, clear=True):
            self.assertEqual(run_tests.run_lanes().failed, 1)

    def test_a_process_left_behind_is_found_and_ended(self):
        name, _, value = run_tests.MARK.partition("=")
        with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              start_new_session=True,
                              env={**os.environ, name: value}) as sleeper:
            sleeper.stdout.readline()      # its environment cannot be read within execve
            try:
                left = run_tests.left_behind(0.5)
            finally:
                sleeper.kill()
        self.assertEqual(len(left), 1)
        self.assertIn(f"pid {sleeper.pid}:", left[0])


class Make(TreeTest):
    def test_help_lists_every_target(self):
        text = (ROOT / "Makefile").read_text()
        phony = re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split()
        shown = re.findall(r"^  make ([a-z-]+)", subprocess.run(
            ["make", "-s", "help"], cwd=ROOT, check=True, capture_output=True,
            text=True).stdout, re.M)
        self.assertEqual(sorted(shown), sorted(phony))

    def test_ci_runs_what_developers_run(self):
        script = ROOT / ".ci" / "run"
        self.assertTrue(os.access(script, os.X_OK))
        self.assertIn("make test", script.read_text())

    def test_versions_are_pinned(self):
        for path in pathlib.Path(ROOT / "tools").glob("requirements*.txt"):
            rows = [r for r in path.read_text().splitlines() if r and r[0] != "#"]
            pinned = re.compile(r"[\w\[\],-]+==[\w.]+(; platform_machine .= .*)?")
            self.assert_none([r for r in rows if not pinned.fullmatch(r)],
                             f"not pinned in {path.name}")


class Plot(TreeTest):
    def test_a_measurement_becomes_a_drawing(self):
        rows = [{"system": name, "over": "shm", "op": "allreduce", "ranks": 2, "bytes": n,
                 "median_us": n / 1000 + k, "ok": True}
                for k, name in enumerate(("hvd-mapped", "mpich"), 1) for n in (4, 4096, 1 << 20)]
        rows.append({"system": "limit", "op": "allreduce", "ranks": 2, "bytes": 4096, "us": 2.0})
        rows.append({"system": "limit", "ranks": 2, "sync_us": 0.2})
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "out.jsonl")
            source.write_text("".join(json.dumps(row) + "\n" for row in rows))
            done = subprocess.run([sys.executable, ROOT / "bench" / "plot.py", source, folder],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            drawing = pathlib.Path(folder, "bench-shm-allreduce-2.svg").read_text()
        xml.dom.minidom.parseString(drawing)
        for text in ("hvd-mapped", "mpich", "limit", "4 KiB", "allreduce, 2 ranks"):
            self.assertIn(text, drawing)


class Setup(TreeTest):
    def setup(self, path):
        return subprocess.run(["/bin/bash", ROOT / "tools" / "setup.sh", "check"], cwd=ROOT,
                              capture_output=True, text=True, env={"PATH": path})

    def test_nothing_is_missing_here(self):
        self.assertEqual(self.setup(os.environ["PATH"]).returncode, 0)

    def test_a_missing_program_is_named_with_its_package(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("sed", "cut", "sort", "tr", "dirname"):
                os.symlink(shutil.which(name), os.path.join(directory, name))
            done = self.setup(directory)
        self.assertEqual(done.returncode, 1)
        self.assertIn("no program clang; it comes with the Debian package clang", done.stderr)
        self.assertIn("no library libuv; it comes with the Debian package libuv1-dev",
                      done.stderr)

    def test_every_program_that_the_tests_call_is_in_the_list(self):
        """What is called by name somewhere in tests/ is installed by tools/setup.sh, or is
        part of every Debian."""
        needs = {row.split()[2] for row in (ROOT / "tools/needs.txt").read_text().splitlines()
                 if row.strip() and row[0] != "#"}
        called = set()
        for path in (ROOT / "tests").rglob("*.[cp]*"):
            called |= set(CALLS.findall(path.read_text(errors="replace")))
        self.assert_none(sorted(called - needs - EVERYWHERE), "not in tools/needs.txt")


class ConfigPage(TreeTest):
    def test_no_row_is_lost(self):
        text = (ROOT / "src/base/config.def").read_text()
        rows = list(gen_docs.rows(text))
        self.assertEqual(len(rows), len(re.findall(r"^CONFIG\(", text, re.M)))
        shown = (ROOT / "docs/config.md").read_text()
        self.assert_none([r["name"] for r in rows if "HIDDEN" not in r["flags"]
                          and f"`HOROVOD_{r['name']}`" not in shown], "not on the page")
