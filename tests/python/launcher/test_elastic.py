"""Elastic jobs: workers come, go and die, and the others go on in the same processes."""
import os
import signal
import sys

import pytest

from counting_job import Job, nothing_left, sizes               # noqa: F401
from hvdrun import finish, living, run, start, wait_until


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_survivors_go_on_and_the_slot_is_filled_again(tmp_path, victim):
    job = Job(tmp_path, "-np", "3", "--min-np", "2", steps=150, do=f"kill {victim} at 20")
    done = job.finish()
    assert done.code == 0, done
    assert f"localhost[{victim}] was killed by SIGKILL; 2 workers train on after" in done.error
    assert f"localhost[{victim}] came; 3 workers train on after" in done.error
    first = {e["pid"] for e in job.events("enter") if e["generation"] == 1}
    last = {e["pid"] for e in job.events("done")}
    assert len(first) == len(last) == 3 and len(first & last) == 2
    assert sizes(job) == [3, 2, 3]


def test_two_die_at_once(tmp_path):
    job = Job(tmp_path, "-np", "4", "--min-np", "1", steps=100,
              do="kill 0 at 20,kill 2 at 20")
    done = job.finish()
    assert done.code == 0 and sizes(job)[0] == sizes(job)[-1] == 4, done


@pytest.mark.parametrize("how, code", [("kill", "SIGKILL"), ("raise", "code 3")])
def test_a_failed_host_is_left_out(tmp_path, how, code):
    job = Job(tmp_path, "-np", "4", "--min-np", "2", "-H", "localhost:2,127.0.0.1:2",
              do=f"{how} 0 at 20")
    done = job.finish()
    assert done.code == 0, done
    assert code in done.error and "host localhost is not used any more" in done.error
    after = [e for e in job.events("step") if e["generation"] == 2]
    assert after and {(e["start"], e["size"], e["host"]) for e in after} == {(2, 2, "127.0.0.1")}


@pytest.mark.parametrize("slots", [1, 2])
def test_hosts_are_added_and_removed(tmp_path, slots):
    job = Job(tmp_path, "-np", str(slots), "--min-np", str(slots), "--max-np", str(2 * slots),
              hosts=[f"localhost:{slots}"], steps=100000)
    job.wait("step", lambda e: e["state"] > 5)
    job.set_hosts([f"localhost:{slots}", f"127.0.0.1:{slots}"])
    both = job.wait("step", lambda e: e["size"] == 2 * slots)
    assert (both["host"], both["start"]) == ("localhost", 0)
    job.set_hosts([f"127.0.0.1:{slots}"])
    other = job.wait("step", lambda e: e["size"] == slots and e["generation"] == 3)
    assert (other["host"], other["start"]) == ("127.0.0.1", slots)
    job.changes.until(lambda: len(job.events("retired")) == slots, 60)
    job.process.send_signal(signal.SIGTERM)
    assert finish(job.process).code == 0


def test_a_worker_that_was_told_to_leave_leaves(tmp_path):
    job = Job(tmp_path, "-np", "3", "--min-np", "1", do="term 1 at 20")
    done = job.finish()
    assert done.code == 0 and "localhost[1] was told to leave; 2 workers" in done.error, done
    assert len(job.events("retired")) == 1 and len(job.events("done")) == 2
    assert all(e["state"] > 20 for e in job.events("retired"))


def test_the_whole_job_is_told_to_leave(tmp_path):
    """SIGTERM to horovodrun: all complete a commit, none is killed, and the job ends with 0."""
    job = Job(tmp_path, "-np", "3", "--min-np", "1", "-H", "localhost:2,127.0.0.1:1",
              steps=100000)
    job.wait("step", lambda e: e["state"] > 5)
    job.process.send_signal(signal.SIGTERM)
    done = job.finish()
    assert done.code == 0 and "its workers have left after their last commit" in done.error, done
    left = job.events("retired")
    assert len(left) == 3 and {e["state"] for e in left} == {job.events("step")[-1]["state"]}


def test_a_job_that_does_not_leave_in_time_is_ended(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--grace-period", "1", steps=100000,
              do="stop 1 at 9", env=dict(HOROVOD_HEARTBEAT_SECONDS="60"))
    job.changes.until((tmp_path / "journal.stop-1-at-9").exists, 60)
    job.process.send_signal(signal.SIGTERM)
    done = job.finish()
    assert done.code == 1 and "have not left within 1 s" in done.error, done
    assert "stopped by SIGTERM" in done.error


def test_a_second_sigterm_does_not_wait(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--grace-period", "600", steps=100000,
              do="stop 1 at 9", env=dict(HOROVOD_HEARTBEAT_SECONDS="600"))
    job.changes.until((tmp_path / "journal.stop-1-at-9").exists, 60)
    job.process.send_signal(signal.SIGTERM)
    said = job.process.stderr
    while b"the workers leave after their next commit" not in said.readline():
        pass
    job.process.send_signal(signal.SIGTERM)
    assert job.finish().code == 1


def test_sigterm_before_the_training_has_begun_ends_the_job():
    process = start("-np", "2", "--min-np", "1", "sh", "-c", "echo here; exec sleep 600")
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    done = finish(process)
    assert done.code == 1 and "before its training had begun" in done.error, done


def test_a_stopped_worker_is_found(tmp_path):
    job = Job(tmp_path, "-np", "3", "--min-np", "2", do="stop 1 at 20",
              env=dict(HOROVOD_HEARTBEAT_SECONDS="1"))
    done = job.finish()
    assert done.code == 0 and "localhost[1] lost its connection" in done.error, done


def test_all_workers_fail(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", do="kill 0 at 9,kill 1 at 9")
    done = job.finish()
    assert done.code == 1 and "Process name: localhost[" in done.error, done
    assert "Exit code: 137" in done.error


def test_too_few_slots_for_too_long(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "2", "--elastic-timeout", "2",
              hosts=["localhost:1", "127.0.0.1:1"], steps=100000)
    job.wait("step", lambda e: e["state"] > 5)
    job.set_hosts(["localhost:1"])
    done = job.finish()
    assert done.code == 1 and "only 1 of 2 slots" in done.error, done
    assert "discovery said last: localhost:1" in done.error


def test_the_reset_limit(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--reset-limit", "0", do="kill 1 at 9")
    done = job.finish()
    assert done.code == 1 and ("Horovod was shutdown because number of resets during elastic "
                               "job exceeded limit: 0") in done.error, done


def test_a_failed_host_comes_back_after_its_cooldown(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "1", "2",
              "-H", "localhost:1,127.0.0.1:1", steps=100000, do="kill 1 at 9")
    job.wait("step", lambda e: e["generation"] == 2 and e["size"] == 1)
    job.wait("step", lambda e: e["generation"] == 3 and e["size"] == 2)
    job.process.send_signal(signal.SIGTERM)
    assert "127.0.0.1 is not used for 2.0 s" in finish(job.process).error


def test_restarts_per_slot(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--restarts-per-slot", "1",
              "-H", "localhost:1,127.0.0.1:1", steps=200, do="kill 1 at 9")
    done = job.finish()
    assert done.code == 0 and sizes(job) == [2, 1, 2], done


def test_who_finishes_early_does_not_fail_the_others(tmp_path):
    job = Job(tmp_path, "-np", "3", "--min-np", "2", do="exit0 2 at 9")
    done = job.finish()
    assert done.code == 0 and sizes(job)[-1] == 2, done


def test_plain_commands_and_programs_that_do_not_work():
    assert run("-np", "2", "--min-np", "1", sys.executable, "-V").code == 0
    done = run("-np", "3", "--min-np", "1", "sh", "-c", "echo once; exit 7")
    assert done.code == 1 and "Exit code: 7" in done.error, done
    assert done.text.count("once") == 3


@pytest.mark.parametrize("script, text", [
    ("exit 3", "ended with code 3"), ("echo a b", "is not a host"),
    ("echo localhost", "host localhost has no number of slots; print name:slots or give "
                       "--slots-per-host")])
def test_a_first_discovery_that_fails_ends_the_job(script, text):
    done = run("-np", "1", "--host-discovery-script", script, "true")
    assert done.code == 1 and text in done.error, done


def test_later_discoveries_may_fail(tmp_path):
    job = Job(tmp_path, "-np", "1", "--min-np", "1", hosts=["localhost:1"], steps=100)
    job.wait("step", lambda e: e["state"] > 5)
    (tmp_path / "hosts").unlink()
    done = job.finish()
    assert done.code == 0 and "ended with code 1" in done.error, done


def test_slots_per_host_and_the_order_of_the_output(tmp_path):
    done = run("-np", "3", "--slots-per-host", "1", "--host-discovery-script",
               "printf '127.0.0.1\\n\\nlocalhost:2\\n'", "sh", "-c",
               "echo $HOROVOD_RANK $HOROVOD_HOSTNAME $HOROVOD_SIZE $HOROVOD_LOCAL_RANK")
    assert done.code == 0, done
    assert done.lines() == ["[0]<stdout>:0 127.0.0.1 3 0", "[1]<stdout>:1 localhost 3 0",
                            "[2]<stdout>:2 localhost 3 1"]


def test_the_launcher_is_killed(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", steps=100000)
    job.wait("step", lambda e: e["state"] > 5)
    job.process.kill()
    job.process.communicate()
    wait_until(lambda: not living(job.process.mark), 20)


def test_the_agent_is_killed(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", steps=100000)
    pid = job.wait("step", lambda e: e["state"] > 5)["pid"]
    agent = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
    os.kill(agent, signal.SIGKILL)
    done = job.finish()
    assert done.code == 1 and "lost the agent of host" in done.error, done


def test_output_files_go_on_with_the_next_worker(tmp_path):
    job = Job(tmp_path, "-np", "2", "--min-np", "1", "--output-filename",
              str(tmp_path / "logs"), do="kill 1 at 9", steps=100)
    assert job.finish().code == 0
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == ["rank.0", "rank.1"]


@pytest.mark.parametrize("phase, also", [
    ("dial", ""), ("meet", ""), ("submit", ""), ("commit", ""),
    ("reset", ",kill 2 at 20"), ("again", ",kill 2 at 20"), ("sync", ",kill 2 at 20")])
def test_killed_in_every_phase(tmp_path, phase, also):
    """The others go on, and a replacement comes."""
    job = Job(tmp_path, "-np", "3", "--min-np", "1", steps=120, do=f"kill 1 in {phase}{also}")
    done = job.finish()
    assert done.code == 0, done
    assert (tmp_path / f"journal.kill-1-in-{phase}").exists(), done
    assert max(e["state"] for e in job.events("done")) == 120


def test_the_replacement_dies_while_it_joins(tmp_path):
    job = Job(tmp_path, "-np", "3", "--min-np", "2", steps=300,
              do="kill 1 at 9,kill 1 in joins")
    done = job.finish()
    assert done.code == 0 and (tmp_path / "journal.kill-1-in-joins").exists(), done
    assert sizes(job)[-1] == 3, sizes(job)


def test_killed_while_it_shuts_down(tmp_path):
    """The others are done; contract 5.6: the job reports who failed."""
    job = Job(tmp_path, "-np", "3", "--min-np", "1", steps=20, do="kill 1 in shutdown")
    done = job.finish()
    assert done.code == 1 and "Process name: localhost[1]" in done.error, done
    assert len(job.events("done")) == 2
