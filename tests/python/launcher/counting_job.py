"""An elastic job of elastic_worker.py, which counts steps and tells what happens to it."""
import json
import pathlib
import sys

import pytest

from changes import Changes
from hvdrun import finish, start

WORKER = str(pathlib.Path(__file__).with_name("elastic_worker.py"))


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    for job in Job.all:
        job.changes.close()
        if job.process.poll() is None:
            job.process.kill()
            job.process.communicate()
    Job.all.clear()


class Job:
    """horovodrun with elastic_worker.py; hosts from a file that a script prints, or fixed."""

    all = []                    # of the present test

    def __init__(self, folder, *args, steps=60, pause=0.01, hosts=None, do="", env=None,
                 **more):
        self.journal, self.list = folder / "journal", folder / "hosts"
        self.journal.touch()
        self.all.append(self)
        words = list(args)
        if hosts is not None:
            self.set_hosts(hosts)
            script = folder / "discover.sh"
            script.write_text(f'#!/bin/sh\ncat "{self.list}"\n')
            script.chmod(0o755)
            words += ["--host-discovery-script", str(script), "--discovery-interval", "0.05"]
        self.process = start(*words, sys.executable, WORKER, str(self.journal), str(steps),
                             str(pause), env=dict(env or {}, HVD_ELASTIC_DO=do), **more)
        self.changes = Changes(folder)

    def set_hosts(self, hosts):
        new = self.list.with_suffix(".new")
        new.write_text("".join(f"{host}\n" for host in hosts))
        new.rename(self.list)

    def events(self, what):
        lines = self.journal.read_text().splitlines()
        return [e for e in map(json.loads, lines) if e["what"] == what]

    def wait(self, what, condition, limit=60):
        return self.changes.until(
            lambda: next((e for e in self.events(what) if condition(e)), None), limit)

    def finish(self, limit=90):
        done = finish(self.process, limit)
        self.check_steps()
        return done

    def check_steps(self):
        """Rank 0 has told each step at most once more than it was lost by a failure, and
        the count never jumps ahead."""
        states = [e["state"] for e in self.events("step")]
        assert all(b <= a + 1 for a, b in zip(states, states[1:])), states


def sizes(job):
    """The sizes the job went through, in order."""
    result = []
    for event in job.events("step"):
        if not result or result[-1] != event["size"]:
            result.append(event["size"])
    return result
