"""How jobs end: exit codes, signals, and that nothing is left, whatever dies."""
import os
import random
import signal
import subprocess
import time

import pytest

from hvdrun import (HOROVODRUN, MARK, assert_gone, environment, finish, living, run, start,
                    wait_until)

VERDICT = ("Horovod detected that one or more processes exited with non-zero status, thus causing "
           "the job to be terminated. The first process to do so was:\n"
           "Process name: {}\nExit code: {}\nHost: localhost\n")


def sh(text):
    return ["sh", "-c", text]


def test_all_zero_is_zero():
    done = run("-np", "4", "true")
    assert (done.code, done.out, done.err) == (0, b"", b"")


def test_a_rank_that_ends_early_ends_nothing():
    done = run("-np", "2", *sh("[ $HOROVOD_RANK = 0 ] || { sleep 0.5; echo late; }"))
    assert (done.code, done.text) == (0, "[1]<stdout>:late\n")


def test_the_first_failure_ends_the_job_and_is_named():
    done = run("-np", "2", *sh("[ $HOROVOD_RANK = 1 ] && { echo bad >&2; exit 3; }; sleep 80"))
    assert done.code == 1 and done.seconds < 20
    assert done.text == ("Process 1 exit with status code 3.\n"
                         "Terminating remaining workers after failure of Process 1.\n"
                         "Process 0 exit with status code 143.\n")
    assert done.error == ("[1]<stderr>:bad\n" + VERDICT.format(1, 3) +
                          "Last lines of its stderr:\n    bad\n")


def test_a_signal_is_128_and_its_number():
    done = run("-np", "2", *sh("[ $HOROVOD_RANK = 0 ] && kill -KILL $$; sleep 80"))
    assert done.code == 1
    assert done.error == VERDICT.format(0, 137) + "Signal: SIGKILL (Killed)\n"
    done = run("-np", "1", *sh("kill -SEGV $$"))
    assert "Exit code: 139\n" in done.error and "Signal: SIGSEGV" in done.error
    assert "Terminating" not in done.text


@pytest.mark.parametrize("command, code, text", [
    ("nosuchprogram", 127, "cannot run 'nosuchprogram': No such file or directory"),
    ("/etc", 126, "cannot run '/etc': Permission denied"),
    ("/nonexistent/x", 127, "cannot run '/nonexistent/x': No such file or directory"),
])
def test_a_command_that_cannot_run(command, code, text):
    done = run("-np", "2", command)
    assert done.code == 1 and f"Exit code: {code}\n" in done.error and text in done.error


def test_the_log_is_named(tmp_path):
    done = run("-np", "1", "--output-filename", str(tmp_path), *sh("echo e >&2; exit 1"))
    assert f"Log: {tmp_path}/rank.0/stderr\n" in done.error


def test_the_last_lines_are_short_and_harmless():
    done = run("-np", "1", *sh(r"seq 100 >&2; printf '\033[2Jx\n' >&2; exit 1"))
    tail = done.error.split("Last lines of its stderr:\n")[1]
    assert tail.splitlines() == [f"    {i}" for i in range(90, 101)] + ["    ?[2Jx"]


def test_a_worker_may_save_its_state_before_it_ends(tmp_path):
    done = run("-np", "2", *sh(
        f"[ $HOROVOD_RANK = 1 ] && sleep 0.3 && exit 1; trap 'sleep 0.5; touch {tmp_path}/saved; "
        "exit 0' TERM; while :; do sleep 0.05; done"))
    assert done.code == 1 and (tmp_path / "saved").exists()
    assert "Process 0 exit" not in done.text        # it obeyed, with code 0


def test_a_worker_that_ignores_sigterm_is_killed_after_the_grace():
    done = run("-np", "2", "--grace-period", "1", *sh(
        "[ $HOROVOD_RANK = 1 ] && sleep 0.3 && exit 1; trap '' TERM; while :; do sleep 1; done"))
    assert done.code == 1 and done.seconds > 1
    assert "Process 0 exit with status code 137.\n" in done.text


def test_descendants_of_a_failed_job_are_ended():
    done = run("-np", "2", *sh("setsid sh -c 'sleep 300 & sleep 300' & sleep 300 & "
                               "[ $HOROVOD_RANK = 1 ] && exit 1; sleep 300"))
    assert done.code == 1                   # and finish() has seen that nothing is left


def started(process, count):
    """Waits until `count` processes called sleep run."""
    def names():
        found = []
        for pid in living(process.mark):
            try:
                found.append(open(f"/proc/{pid}/comm").read().strip())
            except OSError:
                pass
        return found.count("sleep") >= count
    wait_until(names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_launcher_ends_the_job(number):
    process = start("-np", "2", "--grace-period", "40", "sleep", "300")
    started(process, 2)
    began = time.monotonic()
    process.send_signal(number)
    done = finish(process, began=began)
    assert done.code == 1 and done.seconds < 30
    assert "Terminating" not in done.text
    assert sorted(done.text.splitlines()) == [f"Process {r} exit with status code 143."
                                              for r in range(2)]
    assert "Exit code: 143\n" in done.error
    assert f"told to stop by {number.name}." in done.error


def test_a_second_signal_kills_at_once():
    process = start("-np", "2", "--grace-period", "40",
                    *sh("trap '' TERM; sleep 300 & while :; do sleep 1; done"))
    started(process, 2)
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    done = finish(process, began=began)
    assert done.code == 1 and done.seconds < 30
    assert "Process 0 exit with status code 137." in done.text


def test_nohup_stays():
    process = start("-np", "1", "sleep", "1", preexec_fn=lambda: signal.signal(
        signal.SIGHUP, signal.SIG_IGN))
    started(process, 1)
    process.send_signal(signal.SIGHUP)
    assert finish(process).code == 0


TREE = "setsid sh -c 'trap \"\" TERM HUP; sleep 300 & sleep 300' & sleep 300"


def test_killing_the_launcher_leaves_nothing():
    process = start("-np", "2", *sh(TREE))
    started(process, 6)
    process.kill()
    process.communicate()
    assert_gone(process.mark)


def children(pid):
    return [int(p) for p in open(f"/proc/{pid}/task/{pid}/children").read().split()]


def test_killing_the_agent_leaves_nothing():
    process = start("-np", "2", *sh(TREE))
    started(process, 6)
    agent, = children(process.pid)
    os.kill(agent, signal.SIGKILL)
    done = finish(process)
    assert done.code == 1 and "agent" in done.error


def test_stopping_the_agent_politely_ends_the_job():
    process = start("-np", "1", "sleep", "300")
    started(process, 1)
    os.kill(children(process.pid)[0], signal.SIGTERM)
    assert finish(process).code == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_signals_at_every_moment_of_the_start(number):
    rng = random.Random(number)
    for _ in range(10):
        process = start("-np", "3", "sleep", "300")
        time.sleep(rng.random() * 0.08)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode not in (0, None)
        assert_gone(process.mark)


def test_few_processes_besides_the_workers():
    process = start("-np", "8", "sleep", "300")
    started(process, 8)
    assert len(living(process.mark)) <= 8 + 2
    process.terminate()
    finish(process)


def test_two_jobs_do_not_touch_each_other():
    first, second = start("-np", "2", "sleep", "300"), start("-np", "2", "sleep", "2")
    started(first, 2)
    started(second, 2)
    first.terminate()
    assert finish(first).code == 1
    assert finish(second).code == 0


def test_no_zombies_while_the_job_runs():
    process = start("-np", "2", *sh("[ $HOROVOD_RANK = 0 ] && exit 0; (sleep 0.1 &); sleep 300"))
    started(process, 1)
    wait_until(lambda: len(living(process.mark)) <= 4)

    def zombies():
        text = subprocess.run(["ps", "-eo", "stat,ppid"], capture_output=True, text=True).stdout
        ours = {str(process.pid), *map(str, children(process.pid))}
        return [row for row in text.splitlines()[1:]
                if row.split()[0].startswith("Z") and row.split()[1] in ours]
    wait_until(lambda: not zombies())
    process.terminate()
    finish(process)


def test_start_is_quick():
    """A few ms per rank; the limit is wide because others use this machine."""
    times = [run("-np", "8", "true").seconds for _ in range(5)]
    assert min(times) < 1.0


def test_workers_lead_groups_in_one_session_of_their_own():
    """A session without a terminal, so a terminal's signal reaches the launcher only; one for
    all of a host, because the kernel schedules sessions apart (autogroup)."""
    done = run("-np", "2", *sh("echo $(ps -o sid=,pgid=,tty= -p $$) $$"))
    rows = [line.split(":")[1].split() for line in done.text.splitlines()]
    assert all(pgid == pid and tty == "?" for _, pgid, tty, pid in rows)
    assert len({sid for sid, *_ in rows}) == 1 and int(rows[0][0]) != os.getsid(0)


def test_killing_the_launchers_group_leaves_nothing():
    env = environment()
    process = subprocess.Popen([HOROVODRUN, "-np", "1", "sleep", "300"], env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: len(living(env[MARK])) >= 3)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert_gone(env[MARK])
