"""The tools themselves: what the driver counts, what make promises."""
import os
import pathlib
import re
import subprocess
import sys
import unittest.mock

from tree import ROOT, TreeTest

sys.path.insert(0, str(ROOT / "tools"))
import gen_docs  # noqa: E402
import run_tests  # noqa: E402

OUTPUT = """\
sum_of_two_ranks                      ok (0.01 s)
a_lost_peer_is_named                  FAILED: time limit (20.00 s)
needs_a_gpu                           skipped (0.00 s)
"""


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
            self.assert_none([r for r in rows if not re.fullmatch(r"[\w\[\],-]+==[\w.]+", r)],
                             f"not pinned in {path.name}")


class ConfigPage(TreeTest):
    def test_no_row_is_lost(self):
        text = (ROOT / "src/base/config.def").read_text()
        rows = list(gen_docs.rows(text))
        self.assertEqual(len(rows), len(re.findall(r"^CONFIG\(", text, re.M)))
        shown = (ROOT / "docs/config.md").read_text()
        self.assert_none([r["name"] for r in rows if "HIDDEN" not in r["flags"]
                          and f"`HOROVOD_{r['name']}`" not in shown], "not on the page")
