"""Other hosts over ssh: one connection each, a constant command, nothing left behind.

Names of hosts are known to ssh only, so that the launcher takes them for other machines;
variables do not mark the processes there, because sshd starts them: the arguments do."""
import os
import pwd
import signal
import subprocess
import sys
import time
import uuid

import pytest

import sshd as server
from hvdrun import finish, run, start, wait_until

pytestmark = pytest.mark.skipif(not server.available(), reason="no sshd on this machine")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    running = server.Sshd(tmp_path_factory.mktemp("ssh"))
    yield running
    running.close()


def sh(text):
    return ["sh", "-c", text]


SHOW = sh("echo $HOROVOD_RANK $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK $HOROVOD_CROSS_RANK")


def test_local_and_remote_ranks(sshd):
    done = run("-np", "4", "-H", "localhost:1,nodeb:2,nodec:1", *SHOW, env=sshd.env())
    assert done.code == 0, done
    assert done.lines() == ["[0]<stdout>:0 localhost 0 0", "[1]<stdout>:1 nodeb 0 1",
                            "[2]<stdout>:2 nodeb 1 0", "[3]<stdout>:3 nodec 0 2"]
    assert done.err == b""


def test_one_connection_per_host_and_a_constant_command(sshd, tmp_path):
    sshd.calls.unlink(missing_ok=True)
    for secret in ("first-canary", "second"):
        run("-np", "4", "-H", "nodeb:4", "echo", "argument-canary", env=sshd.env(TOKEN=secret),
            cwd=tmp_path)
    first, second = sshd.logged()
    assert first == second
    assert first[-3:-1] == ["--", "nodeb"] and "canary" not in " ".join(first)
    assert first[-1].startswith("exec /bin/sh -c 'test -x ") and "--agent" in first[-1]
    assert "StrictHostKeyChecking=no" not in first and "PasswordAuthentication=no" in first
    sshd.calls.unlink()
    run("-np", "1", "-H", "nodeb:1", "-p", str(sshd.port), "-i", f"{sshd.folder}/id",
        "--no-host-key-check", "true", env=sshd.env())
    words = sshd.logged()[0]
    assert words[words.index("-p") + 1] == str(sshd.port)
    assert words[words.index("-i") + 1] == f"{sshd.folder}/id"
    assert "StrictHostKeyChecking=no" in words


def test_variables_that_travel(sshd):
    done = run("-np", "1", "-H", "nodeb:1", "--env", "TMPDIR", *sh(
        "echo $FORWARDED; echo $HOME; echo $CUDA_VISIBLE_DEVICES.; echo $TMPDIR; echo $DISPLAY."),
        env=sshd.env(FORWARDED="yes", HOME="/elsewhere", CUDA_VISIBLE_DEVICES="3", TMPDIR="/tt",
                     DISPLAY=":7"))
    rows = [line.split(":", 1)[1] for line in done.text.splitlines()]
    assert rows == ["yes", pwd.getpwuid(os.getuid()).pw_dir, ".", "/tt", "."]


def test_the_directory_is_the_same(sshd, tmp_path):
    folder = tmp_path / "with blank 'and' quote;$(x)"
    folder.mkdir()
    done = run("-np", "1", "-H", "nodeb:1", "pwd", env=sshd.env(), cwd=folder)
    assert done.text == f"[0]<stdout>:{folder}\n"


def test_stdin_reaches_a_rank_0_elsewhere(sshd):
    data = os.urandom(300000)
    done = run("-np", "2", "-H", "nodeb:2", "wc", "-c", env=sshd.env(), input=data)
    assert done.lines() == ["[0]<stdout>:300000", "[1]<stdout>:0"]


def test_arguments_arrive_byte_for_byte(sshd, tmp_path):
    words = ["two words", "$HOME;*", "`x`", "", "-x", "'\"\\", "a\nb", "\udcff\udcfe"]
    done = run("-np", "1", "-H", "nodeb:1", "printf", "%s|", *words, env=sshd.env())
    assert done.out == b"[0]<stdout>:" + os.fsencode("|".join(words) + "|").replace(
        b"\n", b"\n[0]<stdout>:")


def test_large_environment(sshd):
    env = {f"BIG{i}": "x" * 100000 for i in range(15)}
    done = run("-np", "1", "-H", "nodeb:1", *sh("printenv BIG14 | wc -c"), env=sshd.env(**env))
    assert done.text == "[0]<stdout>:100001\n", done.error


def test_exit_codes_and_signals(sshd):
    done = run("-np", "2", "-H", "nodeb:1,localhost:1",
               *sh("[ $HOROVOD_RANK = 0 ] && exit 7; sleep 300"), env=sshd.env())
    assert done.code == 1 and "Process name: 0\nExit code: 7\nHost: nodeb\n" in done.error
    done = run("-np", "1", "-H", "nodeb:1", *sh("kill -9 $$"), env=sshd.env())
    assert "Exit code: 137" in done.error and "Signal: SIGKILL" in done.error
    done = run("-np", "1", "-H", "nodeb:1", "nosuchprogram", env=sshd.env())
    assert "cannot run 'nosuchprogram': No such file" in done.error


def find(word):
    """Pids whose command line holds the word."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and word in open(f"/proc/{entry}/cmdline", "rb").read():
                found.append(int(entry))
        except OSError:
            continue
    return found


def start_tree(sshd, *options):
    """Two remote ranks, each with descendants that ignore SIGTERM; all called by a word."""
    word = uuid.uuid4().hex
    script = ("setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.2; done' " + word +
              " & while :; do sleep 0.2; done")
    process = start("-np", "2", "-H", "nodeb:2", *options, "sh", "-c", script, word,
                    env=sshd.env())
    # the launcher, two workers, their two descendants
    wait_until(lambda: len(find(word.encode())) >= 5)
    return process, word.encode()


def assert_none(word, limit=6):
    end = time.monotonic() + limit
    while (left := find(word)) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


def test_killing_the_launcher_leaves_nothing_on_other_hosts(sshd):
    process, word = start_tree(sshd)
    process.kill()
    process.communicate()
    assert_none(word)


def test_a_signal_ends_remote_ranks(sshd):
    process, word = start_tree(sshd, "--grace-period", "1")
    process.terminate()
    done = finish(process)
    assert done.code == 1 and "Exit code: 143" in done.error
    assert_none(word)


def test_user_signals_reach_remote_ranks(sshd):
    process = start("-np", "2", "-H", "nodeb:2", *sh(
        "trap 'echo one; exit 0' USR1; echo ready; while :; do sleep 0.05; done"), env=sshd.env())
    assert {process.stdout.readline() for _ in range(2)} == {b"[0]<stdout>:ready\n",
                                                            b"[1]<stdout>:ready\n"}
    process.send_signal(signal.SIGUSR1)
    done = finish(process)
    assert done.code == 0 and done.lines() == ["[0]<stdout>:one", "[1]<stdout>:one"]


def test_a_lost_connection_ends_the_job_and_the_workers(sshd):
    process, word = start_tree(sshd)
    children = open(f"/proc/{process.pid}/task/{process.pid}/children").read().split()
    for pid in children:
        os.kill(int(pid), signal.SIGKILL)
    done = finish(process)
    assert done.code == 1 and "connection to the agent of host nodeb was lost" in done.error
    assert_none(word)


def agent_of(word):
    """The agent that has started the processes called by the word."""
    for pid in find(word):
        parent = int(open(f"/proc/{pid}/stat").read().rsplit(")")[1].split()[1])
        if open(f"/proc/{parent}/comm").read().strip() == "horovod-agent":
            return parent
    raise AssertionError("no agent")


@pytest.mark.parametrize("number, why", [(signal.SIGKILL, "the connection was closed"),
                                         (signal.SIGSTOP, "no sign of life")])
def test_an_agent_elsewhere_that_is_killed_or_stopped_leaves_nothing(sshd, number, why):
    process, word = start_tree(sshd)
    os.kill(agent_of(word), number)
    done = finish(process)
    assert done.code == 1
    assert f"connection to the agent of host nodeb was lost: {why}" in done.error
    assert_none(word, 10)


def test_a_host_that_cannot_be_reached_is_named(sshd):
    done = run("-np", "2", "-H", "nosuch.invalid:1,nodeb:1", "true", env=sshd.env())
    assert done.code == 1
    assert "ssh to host nosuch.invalid failed:\n" in done.error
    assert "could not connect to some hosts via ssh: nosuch.invalid" in done.error
    assert sum(c[-2] == "nosuch.invalid" for c in sshd.logged()) == 5       # tries


def test_a_host_that_never_answers_is_named_in_time(sshd, tmp_path):
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 300\n")
    (tmp_path / "ssh").chmod(0o755)
    done = run("-np", "1", "-H", "nodeb:1", "--start-timeout", "1", "true",
               env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.code == 1 and done.seconds < 15
    assert "Timed out waiting for the agent of nodeb." in done.error
    assert "--start-timeout" in done.error and done.error.endswith("Timeout after 1 seconds.\n")


def test_what_a_login_prints_does_not_disturb(sshd, tmp_path):
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'Welcome!'; "
                                  f"exec {sshd.folder}/bin/ssh \"$@\"\n")
    (tmp_path / "ssh").chmod(0o755)
    done = run("-np", "1", "-H", "nodeb:1", "echo", "x",
               env=sshd.env() | {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (done.code, done.text) == (0, "[0]<stdout>:x\n")


def test_verbose_lines_of_a_remote_job(sshd):
    done = run("-np", "2", "-H", "localhost:1,nodeb:1", "--verbose", "true", env=sshd.env())
    wanted = ["Filtering local host names.", "Remote host found: nodeb",
              "Checking ssh on all remote hosts.", "SSH was successful into all the remote hosts.",
              "Testing interfaces on all the hosts.", "Launched horovod server.",
              "Launching horovod task function: ", "Attempted to launch horovod task servers.",
              "Waiting for the hosts to acknowledge.",
              "Notified all the hosts that the registration is complete.",
              "Waiting for hosts to perform host-to-host interface checking.",
              "Host-to-host interface checking successful.",
              "Interfaces on all the hosts were successfully checked.",
              "Common interface found: ", "Starting rank 0 on localhost: true"]
    at = -1
    for text in wanted:
        at = done.text.find(text, at + 1)
        assert at >= 0, (text, done.text)
    assert done.text.count("Launching horovod task function: ") == 2


def test_output_of_remote_ranks_is_whole(sshd):
    done = run("-np", "2", "-H", "nodeb:2", "seq", "20000", env=sshd.env())
    for rank in range(2):
        mine = [row for row in done.text.splitlines() if row.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}]<stdout>:{i}" for i in range(1, 20001)]


def test_horovod_run_on_other_hosts(sshd, monkeypatch):
    import horovod
    for name, value in sshd.env().items():
        monkeypatch.setenv(name, value)
    hosts = horovod.run(lambda: os.environ["HOROVOD_HOSTNAME"], num_proc=3,
                        hosts="localhost:1,nodeb:2")
    assert hosts == ["localhost", "nodeb", "nodeb"]


JOIN = ("from horovod import _core as c; c.init(None, False); "
        "print(c.rank(), c.size(), c.local_size(), c.cross_size(), flush=True); c.shutdown()")


def test_a_job_over_hosts(sshd):
    done = run("-np", "3", "-H", "localhost:1,nodeb:2", sys.executable, "-c", JOIN,
               env=sshd.env())
    assert done.code == 0, done
    assert done.lines() == ["[0]<stdout>:0 3 1 2", "[1]<stdout>:1 3 2 2", "[2]<stdout>:2 3 2 1"]


def test_kubeflow(sshd, tmp_path):
    """The program of the operator stands in for ssh; it gets host and command."""
    if os.getuid() != 0:
        pytest.skip("needs a mount namespace")
    script = tmp_path / "kubexec.sh"
    script.write_text(f"#!/bin/sh\nhost=$1; shift; printf '%s\\n' \"$host\" >> {tmp_path}/hosts\n"
                      f"exec /bin/sh -c \"$*\"\n")
    script.chmod(0o755)
    from hvdrun import HOROVODRUN, environment
    inner = (f"mkdir -p {tmp_path}/etc && mount -t tmpfs none /etc/mpi 2>/dev/null || "
             f"{{ mount -t overlay none -o lowerdir=/etc,upperdir={tmp_path}/up,"
             f"workdir={tmp_path}/work /etc && mkdir -p /etc/mpi; }}; "
             f"cp {script} /etc/mpi/kubexec.sh && exec {HOROVODRUN} -np 2 -H pod-1:2 echo hi")
    (tmp_path / "up").mkdir()
    (tmp_path / "work").mkdir()
    done = subprocess.run(["unshare", "-m", "sh", "-c", inner], capture_output=True, text=True,
                          env=environment(OMPI_MCA_plm_rsh_agent="/etc/mpi/kubexec.sh"),
                          stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done
    assert sorted(done.stdout.splitlines()) == ["[0]<stdout>:hi", "[1]<stdout>:hi"]
    assert (tmp_path / "hosts").read_text() == "pod-1\n"
