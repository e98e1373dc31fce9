"""Workers killed at random, hosts coming and going, and the training goes on."""
import os
import random
import signal
import time

import pytest

from elastic_job import HERE, ElasticJob

LONG_S = int(os.environ.get("HVD_SOAK_SECONDS", "3600"))
HOSTS = (["localhost:2", "127.0.0.1:2"], ["localhost:2", "127.0.0.1:1"], ["localhost:2"],
         ["localhost:1", "127.0.0.1:2"])


def outside(job, hosts):
    """Workers on slots that are not in the list."""
    slots = dict(host.split(":") for host in hosts)
    return {int(row[3]) for row in job.journal("enter")
            if int(row[5]) >= int(slots.get(row[4], 0))}


def disturb(job, dice, end):
    """A random worker killed, or told to leave, every 0.5 to 3 s; the hosts change as often.
    Somebody who has the state and is not on the way out is always left."""
    kills, leaving, hosts = 0, set(), HOSTS[0]
    while time.monotonic() < end:
        time.sleep(dice.uniform(0.5, 3.0))              # the load, not a synchronisation
        assert job.process.poll() is None, job.text()
        leaving |= outside(job, hosts)                  # some came when it had been decided
        staying = set(job.workers()) - leaving
        if len(staying) > 1:
            victim = dice.choice(sorted(staying))
            kind = signal.SIGTERM if dice.random() < 0.2 else signal.SIGKILL
            os.kill(victim, kind)
            leaving.add(victim)
            kills += 1
        others = dice.choice(HOSTS)
        if dice.random() < 0.3 and staying - leaving - outside(job, others):
            hosts = others
            leaving |= outside(job, hosts)
            job.set_hosts(*hosts)
    return kills


@pytest.mark.timeout(600)
def test_half_a_minute():
    soak(30)


@pytest.mark.long
@pytest.mark.timeout(LONG_S + 900)
def test_an_hour():
    soak(LONG_S)


def soak(seconds):
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    print(f"seed {seed}")
    with ElasticJob(HERE / "soak_train.py", HOSTS[0], "-np", "2", "--min-np", "1", "--max-np",
                    "4", "--restarts-per-slot", "1000000") as job:
        job.until(lambda: len(job.workers()) >= 2)
        kills = disturb(job, dice, time.monotonic() + seconds)
        (job.directory / "stop").touch()
        code = job.wait(300)
        wrong = job.directory / "wrong"
        assert not wrong.exists(), wrong.read_text() + job.text()
        assert code == 0, job.text()
        done = job.journal("done")
        assert done and len({(row[2], row[3]) for row in done}) == 1, done
        assert len(job.journal("enter")) > kills > 0, (kills, job.journal("enter"))
