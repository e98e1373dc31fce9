"""Elastic jobs of horovodrun: who dies, who comes, who leaves."""
import os
import signal
import sys

import pytest

from elastic_job import HERE, ElasticJob, hvdrun

TRAIN = HERE / "soak_train.py"
ROOT = HERE.parent.parent.parent


def entered(job, size):
    """The workers of the last generation of that size that has begun."""
    rows = job.journal("enter")
    ranks = {}
    for row in rows:
        if int(row[2]) == size:
            ranks[int(row[1])] = int(row[3])
    return ranks if len(ranks) == size else None


def finish(job):
    (job.directory / "stop").touch()
    assert job.wait() == 0, job.text()
    assert not (job.directory / "wrong").exists(), (job.directory / "wrong").read_text()
    done = job.journal("done")
    assert done and len({row[3] for row in done}) == 1, done
    return done


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_worker_is_replaced(victim):
    """Survivors keep their process; also when rank 0 dies."""
    with ElasticJob(TRAIN, ["localhost:3"], "-np", "3", "--min-np", "1",
                    "--restarts-per-slot", "5") as job:
        ranks = job.until(lambda: entered(job, 3))
        os.kill(ranks[victim], signal.SIGKILL)
        job.until(lambda: entered(job, 2))
        count = len(job.journal("enter"))
        job.until(lambda: {r[2] for r in job.journal("enter")[count:]} >= {"3"} or
                  [r for r in job.journal("enter") if int(r[3]) not in ranks.values()])
        finish(job)
        pids = {int(row[3]) for row in job.journal("enter")}
        assert set(ranks.values()) < pids


def test_sigterm_is_notice():
    """The worker completes its step, the others lose nothing, its exit code is 0."""
    with ElasticJob(TRAIN, ["localhost:2", "127.0.0.1:1"], "-np", "3", "--min-np", "1") as job:
        ranks = job.until(lambda: entered(job, 3))
        os.kill(ranks[2], signal.SIGTERM)
        job.until(lambda: entered(job, 2))
        finish(job)
        assert "SIGTERM: this worker leaves the job after its next commit" in job.text()
        assert "leaves with exit code 0" in job.text()


def test_hosts_come_and_go():
    with ElasticJob(TRAIN, ["localhost:1"], "-np", "1", "--min-np", "1", "--max-np", "3") as job:
        first = job.until(lambda: entered(job, 1))
        job.set_hosts("localhost:1", "127.0.0.1:2")
        job.until(lambda: entered(job, 3))
        job.set_hosts("localhost:1")
        job.until(lambda: len([r for r in job.journal("enter") if r[2] == "1"]) >= 2)
        finish(job)
        last = [row for row in job.journal("enter") if row[2] == "1"][-1]
        assert int(last[3]) == first[0]


def test_the_example_survives():
    done = hvdrun.run("-np", "2", "--min-np", "1", "--restarts-per-slot", "5", sys.executable,
                      str(ROOT / "examples" / "elastic" / "train.py"), "--epochs", "2",
                      "--step-seconds", "0", limit=120)
    assert done.code == 0, done.error
    assert "2 epochs, 9600 samples, 4800 in each epoch" in done.text
