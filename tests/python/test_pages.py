"""Code of the pages that is marked as runnable runs: one job of two ranks for all of it.

A block of Python after the line `<!-- runs -->` counts.  The blocks of a page share their names,
in order, as if they were one script.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^<!-- runs -->\n```python\n(.*?)^```$", re.S | re.M)
RUNNER = """\
import sys

for path in sys.argv[1:]:
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), {"__name__": "__main__"})
print("all pages ran", flush=True)
"""


def scripts(folder):
    """A file per page, in which every block stands at its own line."""
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text()
        lines = [""] * text.count("\n")
        for block in BLOCK.finditer(text):
            first = text.count("\n", 0, block.start(1))
            code = block[1].splitlines()
            lines[first:first + len(code)] = code
        if any(lines):
            path = pathlib.Path(folder, page.name)
            path.write_text("\n".join(lines))
            yield str(path)


@pytest.mark.timeout(300)          # two imports of torch on a busy machine
def test_runnable_blocks_run():
    with tempfile.TemporaryDirectory() as folder:
        runner = pathlib.Path(folder, "runner.py")
        runner.write_text(RUNNER)
        pages = list(scripts(folder))
        assert len(pages) >= 4
        horovodrun = os.path.join(os.path.dirname(sys.executable), "horovodrun")
        done = subprocess.run(
            [horovodrun, "-np", "2", sys.executable, runner, *pages], cwd=folder, timeout=280,
            capture_output=True, text=True,
            env={**os.environ, "HOROVOD_DYNAMIC_PROCESS_SETS": "1", "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("all pages ran") == 2, done.stdout
