"""How jobs end: exit codes, signals, and that nothing is left, whatever dies."""
import contextlib
import os
import random
import signal
import subprocess
import sys
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


CATCHER = ("import os, signal, time\n"
           "child = os.fork()\n"                        # as a data loader does
           "def say(text): os.write(1, text.encode() + b'\\n')\n"
           "def took(number, frame): say(f'{signal.Signals(number).name} {child > 0}')\n"
           "for n in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(n, took)\n"
           "say('ready')\n"
           "while not os.path.exists(END): time.sleep(0.02)\n")


def read_until(process, wanted):
    """Lines of stdout, sorted, up to as many as wanted; they must be these."""
    lines = sorted(process.stdout.readline().decode().rstrip() for _ in wanted)
    assert lines == sorted(wanted)


@pytest.mark.parametrize("wrapper", [[], ["sh", "-c", '"$@"; true', "sh"]])
def test_user_signals_reach_those_who_handle_them(wrapper, tmp_path):
    """Not the shell around a worker, which would die, and not a child of the worker."""
    end = tmp_path / "end"
    process = start("-np", "2", *wrapper, sys.executable, "-c",
                    CATCHER.replace("END", repr(str(end))))
    read_until(process, [f"[{r}]<stdout>:ready" for r in (0, 0, 1, 1)])
    for number in signal.SIGUSR1, signal.SIGUSR2:
        process.send_signal(number)
        read_until(process, [f"[{r}]<stdout>:{number.name} True" for r in (0, 1)])
    end.touch()
    done = finish(process)
    assert (done.code, done.out, done.err) == (0, b"", b"")


def test_a_user_signal_that_nobody_handles_ends_nothing():
    process = start("-np", "2", "sleep", "300")
    started(process, 2)
    process.send_signal(signal.SIGUSR1)
    assert process.stderr.readline() == (b"horovodrun: host localhost: SIGUSR1 was not passed to "
                                         b"rank 0, 1, which does not handle it\n")
    for pid in owners(process):         # scancel --signal tells everybody
        os.kill(pid, signal.SIGUSR2)
    process.terminate()
    assert "Exit code: 143" in finish(process).error


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


def owners(process):
    """Guard and agent of a local job."""
    guard, = children(process.pid)
    agent, = children(guard)
    return guard, agent


def kill_all(pids):
    """None of them does anything about the death of another but end, continued by its guard."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


WRAPPERS = {
    "none": ["sh", "-c", TREE],
    "shell": ["sh", "-c", "sh -c '" + "sleep 300; true" + "' ; true"],
    "python": [sys.executable, "-c",
               "import subprocess; subprocess.run(['sleep', '300'], start_new_session=True)"],
    "daemon": ["sh", "-c", "(setsid setsid sh -c 'trap \"\" TERM HUP; sleep 300; true' &); "
                           "sleep 300"],
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("victims", ["agent", "guard", "launcher agent", "launcher guard",
                                     "agent guard"])
def test_killing_any_two_leaves_nothing(victims, wrapper):
    process = start("-np", "2", *WRAPPERS[wrapper])
    started(process, 2 if wrapper in ("shell", "python") else 4)
    guard, agent = owners(process)
    pids = {"launcher": process.pid, "guard": guard, "agent": agent}
    kill_all([pids[name] for name in victims.split()])
    process.communicate(timeout=40)
    assert process.returncode == (-signal.SIGKILL if "launcher" in victims else 1)
    assert_gone(process.mark, 10)


RANK = """
import time
import horovod.numpy as hvd
hvd.init()
hvd.barrier()
print("started", flush=True)
while True:
    time.sleep(300)
"""


def test_ranks_behind_a_wrapper_end_when_nobody_is_left_to_end_them():
    """Launcher, guard and agent have died: the kernel ends the wrappers, the ranks themselves."""
    wrapper = "import subprocess, sys; subprocess.run(sys.argv[1:], start_new_session=True)"
    process = start("-np", "2", sys.executable, "-c", wrapper, sys.executable, "-c", RANK)
    started = [process.stdout.readline() for _ in range(2)]
    assert all(b"started" in line for line in started), started
    kill_all([process.pid, *owners(process)])
    process.communicate(timeout=40)
    assert_gone(process.mark, 10)


def test_killing_by_the_name_of_the_command_leaves_nothing():
    """pkill -f would meet launcher and workers; guard and agent have names of their own."""
    process = start("-np", "2", *sh("sh -c 'exec sleep 300' & wait"))
    started(process, 2)
    guard, agent = owners(process)
    for pid, name in (guard, "horovod-guard"), (agent, "horovod-agent"):
        assert open(f"/proc/{pid}/cmdline").read().strip("\0") == name
        assert open(f"/proc/{pid}/comm").read().strip() == name
    process.kill()
    process.communicate()
    assert_gone(process.mark)


@pytest.mark.parametrize("who", ["agent", "guard", "both"])
def test_a_stopped_agent_does_not_keep_a_job_from_ending(who):
    process = start("-np", "2", *sh("sleep 300; true"))
    started(process, 2)
    guard, agent = owners(process)
    for pid in {"agent": [agent], "guard": [guard], "both": [guard, agent]}[who]:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    process.terminate()
    done = finish(process, began=began)
    assert done.code == 1 and "told to stop by SIGTERM" in done.error
    assert done.seconds < 5


@pytest.mark.parametrize("who", ["agent", "both"])
def test_a_stopped_agent_leaves_nothing_when_the_launcher_is_killed(who):
    process = start("-np", "2", *sh(TREE))
    started(process, 6)
    guard, agent = owners(process)
    for pid in {"agent": [agent], "both": [guard, agent]}[who]:
        os.kill(pid, signal.SIGSTOP)
    process.kill()
    process.communicate()
    assert_gone(process.mark, 10)


@pytest.mark.parametrize("which", [0, 1])
def test_stopping_guard_or_agent_politely_ends_the_job(which):
    process = start("-np", "1", "sleep", "300")
    started(process, 1)
    os.kill(owners(process)[which], signal.SIGTERM)
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
    assert len(living(process.mark)) <= 8 + 3      # launcher, guard, agent
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
    wait_until(lambda: len(living(process.mark)) <= 5)

    def zombies():
        text = subprocess.run(["ps", "-eo", "stat,ppid"], capture_output=True, text=True).stdout
        ours = {str(process.pid), *map(str, owners(process))}
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


WHO = """import atexit, os, signal, sys, time
from horovod import _core
from horovod.common import uncaught
_core.init(None, False)
if _core.rank() == 1:
    atexit.register(time.sleep, {slow})     # runs after shutdown: the others end before it
atexit.register(_core.shutdown)
uncaught.install()
def step():
    handle = _core.submit(5, 1, 0, -1, 1.0, 1.0, [(None, 0, 0, 0, (), None)], None)
    _core.wait(handle)
    _core.release(handle)
step()
if _core.rank() == 1:
    {fails}
step()
"""


@pytest.mark.parametrize("fails, code, runs", [
    ("raise ValueError('bad sample')", 1, 20),
    ("sys.exit(3)", 3, 5),
    ("os.kill(os.getpid(), signal.SIGKILL)", 137, 5),
])
def test_the_rank_at_fault_is_named_whoever_ends_first(fails, code, runs):
    for i in range(runs):
        done = run("-np", "3", sys.executable, "-c", WHO.format(fails=fails, slow=0.3 * (i % 2)))
        assert done.code == 1 and VERDICT.format(1, code) in done.error, done
        if "Terminating" in done.text:
            assert "after failure of Process 1." in done.text
        if code == 1:
            assert "    ValueError: bad sample\n" in done.error


@pytest.mark.parametrize("echo", ["step()", "try: step()\nexcept Exception: os._exit(1)"])
def test_the_rank_at_fault_is_named_though_the_others_leave_before_it(echo):
    """It has told them that it leaves, and is held up: they end first, and one of them without
    any farewell."""
    script = WHO.format(fails="sys.exit(3)", slow=0)
    script = script[:script.rindex("step()")] + echo
    done = run("-np", "3", sys.executable, "-c", script,
               env={"HOROVOD_FAULT": "job.leave rank=1 delay=700"})
    assert done.code == 1 and VERDICT.format(1, 3) in done.error, done
    assert "after failure of Process 1." not in done.text or "Process 1 exit" in done.text


def test_a_rank_that_left_early_but_well_is_not_named():
    """The others fail without it; that it ended first is no failure."""
    done = run("-np", "2", sys.executable, "-c", WHO.format(fails="sys.exit(0)", slow=0.3))
    assert done.code == 1 and VERDICT.format(0, 1) in done.error
    assert "rank 1" in done.error and "left the job" in done.error


def test_a_rank_at_fault_that_does_not_end_is_ended():
    done = run("-np", "2", sys.executable, "-c",
               WHO.format(fails="raise ValueError('bad sample')", slow=300))
    assert done.code == 1 and done.seconds < 30
    assert VERDICT.format(1, 143) in done.error


def test_a_lack_of_memory_is_named(tmp_path):
    """The kernel's count, as a file in a name space of our own: filling the machine's memory
    would end other processes than ours."""
    if os.getuid() != 0:
        pytest.skip("needs a mount namespace")
    counts = tmp_path / "vmstat"
    counts.write_text("nr_free_pages 1\noom_kill 3\n")
    env = environment()
    text = (f"mount --bind {counts} /proc/vmstat && exec {HOROVODRUN} -np 1 sh -c "
            f"'echo oom_kill 4 > {counts}; kill -KILL $$'")
    done = subprocess.run(["unshare", "-m", "sh", "-c", text], env=env, capture_output=True,
                          text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert_gone(env[MARK])
    assert done.returncode == 1
    assert ("Reason: killed, and the kernel has ended a process here for lack of memory"
            in done.stderr)
    counts.write_text("nr_free_pages 1\n")
    done = subprocess.run(["unshare", "-m", "sh", "-c", text.replace("echo oom_kill 4", "echo")],
                          env=env, capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)
    assert "the kernel did for lack of memory: see dmesg" in done.stderr
