"""Elastic jobs over several machines: over ssh, and machines that join by themselves."""
import os
import pathlib
import re
import secrets
import signal

import pytest

import sshd as server
from counting_job import Job, nothing_left                        # noqa: F401
from hvdrun import finish, living, start, wait_until


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    if not server.available():
        pytest.skip("no sshd on this machine")
    running = server.Sshd(tmp_path_factory.mktemp("ssh"))
    yield running
    running.close()


def parents(pid):
    """(name, pid) of the processes above, the nearest first."""
    result = []
    while pid > 1:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
        name, rest = stat[stat.index("(") + 1:stat.rindex(")")], stat.rsplit(")", 1)[1]
        result.append((name, pid))
        pid = int(rest.split()[1])
    return result


def remote_job(tmp_path, sshd, *options, hosts="localhost:1,nodeb:2", **more):
    """Under way with a worker here and two on nodeb; and the pid of one of those."""
    job = Job(tmp_path, "-np", "3", "--min-np", "1", "-H", hosts, *options, steps=100000,
              env=sshd.env(), **more)
    job.wait("step", lambda e: e["size"] == 3)
    return job, job.wait("enter", lambda e: e["host"] == "nodeb")["pid"]


def end(job):
    job.process.send_signal(signal.SIGTERM)
    done = finish(job.process)
    job.check_steps()
    return done


@pytest.mark.parametrize("what, why", [
    ("worker", "was killed by SIGKILL"), ("agent", "lost the agent of host nodeb"),
    ("ssh", "lost the agent of host nodeb")])
def test_what_is_killed_on_another_host(tmp_path, sshd, what, why):
    """A worker, the agent, the connection: the others go on without that host."""
    said = tmp_path / "said"
    with open(said, "wb") as stderr:
        job, pid = remote_job(tmp_path, sshd, stderr=stderr)
    if what == "agent":
        pid = dict(parents(pid))["horovod-agent"]
    elif what == "ssh":
        pid = next(p for p in living(job.process.mark)
                   if pathlib.Path(f"/proc/{p}/comm").read_text().strip() == "ssh")
    os.kill(pid, signal.SIGKILL)
    job.wait("step", lambda e: e["size"] == 1)
    job.changes.until(lambda: why in said.read_text(), 60)      # when all have formed
    end(job)
    assert "host nodeb is not used any more" in said.read_text()


def test_notice_to_another_host(tmp_path, sshd):
    """SIGTERM to its agent: its workers leave after a commit, with code 0."""
    said = tmp_path / "said"
    with open(said, "wb") as stderr:
        job, pid = remote_job(tmp_path, sshd, "--grace-period", "20", stderr=stderr)
    os.kill(dict(parents(pid))["horovod-agent"], signal.SIGTERM)
    job.wait("step", lambda e: e["size"] == 1)
    job.changes.until(lambda: len(job.events("retired")) == 2, 60)
    job.changes.until(lambda: "host nodeb was told to leave; 1 worker trains on"
                      in said.read_text(), 60)
    end(job)


def test_another_host_comes_and_goes(tmp_path, sshd):
    job = Job(tmp_path, "-np", "1", "--min-np", "1", hosts=["localhost:1"], steps=100000,
              env=sshd.env())
    job.wait("step", lambda e: e["size"] == 1)
    job.set_hosts(["localhost:1", "nodeb:2"])
    job.wait("step", lambda e: e["size"] == 3)
    job.set_hosts(["localhost:1"])
    job.wait("step", lambda e: e["size"] == 1 and e["generation"] == 3)
    job.set_hosts(["localhost:1", "nodeb:1"])
    job.wait("step", lambda e: e["size"] == 2 and e["generation"] == 4)
    end(job)
    assert len(job.events("retired")) >= 2


# -- machines that join --------------------------------------------------------------------


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text(secrets.token_hex(32))
    path.chmod(0o600)
    return path


class Running:
    """A job of one worker here, which others may join; what it has said so far is read from
    a file."""

    def __init__(self, folder, key):
        self.said = folder / "said"
        with open(self.said, "wb") as file:
            self.job = Job(folder, "-np", "1", "--min-np", "1", "--key-file", str(key),
                           steps=100000, stderr=file)
        self.job.wait("step", lambda e: e["size"] == 1)
        self.address = re.search(r"--join (\S+)", self.said.read_text()).group(1)

    def join(self, *options, **more):
        return start("--join", self.address, *options, **more)


def test_a_machine_joins_and_leaves(tmp_path, key):
    """Ctrl-C takes its slots out again; nothing is lost, and nothing left."""
    running = Running(tmp_path, key)
    guest = running.join("-np", "2", "--key-file", str(key))
    three = running.job.wait("step", lambda e: e["size"] == 3)
    guest.send_signal(signal.SIGINT)
    running.job.wait("step", lambda e: e["size"] == 1 and e["state"] > three["state"])
    left = finish(guest)
    assert left.code == 0 and left.error == "", left
    wait_until(lambda: len(running.job.events("retired")) == 2)
    again = running.join("--key-file", str(key))                # and comes back
    running.job.wait("step", lambda e: e["size"] == 2)
    running.job.process.send_signal(signal.SIGTERM)
    finish(running.job.process)
    assert finish(again).code in (0, 1)
    running.job.check_steps()
    assert "has joined with 2 slots" in running.said.read_text()


def test_a_machine_that_joined_is_killed(tmp_path, key):
    running = Running(tmp_path, key)
    guest = running.join("--key-file", str(key))
    running.job.wait("step", lambda e: e["size"] == 2)
    guest.kill()
    running.job.wait("step", lambda e: e["size"] == 1 and e["generation"] == 3)
    guest.communicate()
    wait_until(lambda: not living(guest.mark), 20)
    running.job.process.send_signal(signal.SIGTERM)
    finish(running.job.process)
    running.job.check_steps()


def test_joining_needs_the_key(tmp_path, key):
    """By file or variable; never from the command line; another one is refused."""
    running = Running(tmp_path, key)
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    wrong.chmod(0o600)
    done = finish(running.join("--key-file", str(wrong), "--start-timeout", "1"))
    assert done.code == 1 and "another key" in done.error, done
    open_to_all = tmp_path / "open"
    open_to_all.write_text(key.read_text())
    open_to_all.chmod(0o644)
    done = finish(running.join("--key-file", str(open_to_all)))
    assert done.code == 1 and "only you can read" in done.error, done
    done = finish(running.join("--key-file", str(key), "true"))
    assert done.code == 2 and "takes no command" in done.error, done
    guest = running.join(env=dict(HOROVOD_KEY=key.read_text()))
    running.job.wait("step", lambda e: e["size"] == 2)
    for pid in living(guest.mark) + living(running.job.process.mark):
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
        assert key.read_bytes() not in words
    running.job.process.send_signal(signal.SIGTERM)
    finish(running.job.process)
    finish(guest)
