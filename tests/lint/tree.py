"""What the rules look at: the files of the repository, and what was built from them."""
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build" / "gcc"


def tracked(*patterns):
    """Paths of the repository's files, without those only the work tree has."""
    names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others",
                            "--exclude-standard", "--", *patterns], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\0")
    return [ROOT / n for n in sorted(set(names)) if n and (ROOT / n).is_file()]


def lines(paths):
    for path in paths:
        for number, row in enumerate(path.read_text(errors="replace").splitlines(), 1):
            yield path.relative_to(ROOT), number, row


def installed(name):
    """A file of our package in the virtual environment that runs this test."""
    if name == "horovodrun":
        return pathlib.Path(sys.executable).parent / name
    import sysconfig
    return pathlib.Path(sysconfig.get_path("platlib")) / "horovod" / name


def output(*command):
    return subprocess.run([str(c) for c in command], cwd=ROOT, check=True,
                          capture_output=True, text=True).stdout


class TreeTest(unittest.TestCase):
    maxDiff = None

    def assert_none(self, found, rule):
        found = [str(f) for f in found]
        if found:
            self.fail(f"{rule}:\n  " + "\n  ".join(found))
