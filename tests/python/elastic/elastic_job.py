"""An elastic job under horovodrun, whose hosts the test changes and whose workers it kills."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "launcher"))

import hvdrun                                                       # noqa: E402
from changes import Changes                                         # noqa: E402


class ElasticJob:
    """``hosts`` is what discovery prints; the script gets the job's directory as argument, and
    keeps a journal there, a line per event."""

    def __init__(self, script, hosts, *options, arguments=(), env=None):
        self.folder = tempfile.TemporaryDirectory(prefix="hvd-elastic-")
        self.directory = pathlib.Path(self.folder.name)
        self.set_hosts(*hosts)
        discover = self.directory / "discover.sh"
        discover.write_text(f"#!/bin/sh\ncat '{self.directory}/hosts'\n")
        discover.chmod(0o700)
        self.env = hvdrun.environment(env, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
        self.log = open(self.directory / "log", "w+b")
        self.process = subprocess.Popen(
            [hvdrun.HOROVODRUN, "--host-discovery-script", str(discover), *options,
             sys.executable, str(script), str(self.directory), *arguments],
            env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            start_new_session=True)
        self.changes = Changes(self.directory, self.process)

    def set_hosts(self, *hosts):
        new = self.directory / "hosts.new"
        new.write_text("".join(f"{host}\n" for host in hosts))
        new.replace(self.directory / "hosts")

    def text(self):
        return (self.directory / "log").read_text(errors="replace")

    def journal(self, first=None):
        """The words of each line, of those that begin with ``first``."""
        path = self.directory / "journal"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [row for row in rows if first is None or row[0] == first]

    def until(self, condition, limit=90.0):
        """Waits for a value of condition(); the job must not end before."""
        return self.changes.until(condition, limit, text=self.text)

    def workers(self):
        """Process ids of workers that have entered the training and live."""
        alive = set(hvdrun.living(self.env[hvdrun.MARK]))
        return sorted({int(row[3]) for row in self.journal("enter")} & alive)

    def wait(self, limit=120.0):
        """The exit code; nothing of the job is left."""
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not finished in {limit} s\n{self.text()}") from None
        hvdrun.wait_until(lambda: not hvdrun.living(self.env[hvdrun.MARK]), 10)
        return code

    def close(self):
        for pid in [self.process.pid, *hvdrun.living(self.env[hvdrun.MARK])]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.changes.close()
        self.log.close()
        self.folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
