"""The other ways to start a job: mpirun, the same command on every node, no launcher."""
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

import sshd as server
from hvdrun import BIN, MARK, assert_gone, environment, finish, run, start, wait_until

JOIN = ("import os; from horovod import _core as c; c.init(None, False); "
        "os.write(1, b'joined %d %d %d %d\\n' % (c.rank(), c.size(), c.local_rank(), "
        "c.local_size())); c.shutdown()")
COMMAND = [sys.executable, "-c", JOIN]


def joined(text):
    return sorted(line[line.index("joined"):] for line in text.splitlines() if "joined" in line)


def all_of(size):
    return [f"joined {r} {size} {r} {size}" for r in range(size)]


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "key"
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    return str(path)


# --- mpirun ----------------------------------------------------------------------------

@pytest.fixture(params=["openmpi", "mpich"])
def mpi(request, tmp_path):
    """A PATH on which mpirun is of this MPI."""
    program = shutil.which(f"mpirun.{request.param}")
    if program is None:
        pytest.skip(f"no mpirun of {request.param}")
    folder = tmp_path / "mpi"
    folder.mkdir()
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {program} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    return {"PATH": f"{folder}:{BIN}:{os.environ['PATH']}"}


def test_mpirun_starts_the_ranks(mpi):
    done = run("-np", "2", "--mpi", *COMMAND, env=mpi)
    assert done.code == 0, done
    assert joined(done.text) == all_of(2)


def test_mpirun_gets_whole_lines(mpi):
    """What a rank prints is written at once, and a line in one piece."""
    script = ("import os, sys\n"
              "ours, theirs = os.pipe()\n"
              "keep = os.dup(1); os.dup2(theirs, 1)\n"
              "print('a', 'line'); first = os.read(ours, 100)\n"
              "os.dup2(keep, 1)\n"
              "print(f'read {first}')\n")
    done = run("-np", "1", "--mpi", sys.executable, "-c", script, env=mpi)
    assert done.code == 0 and "read b'a line\\n'" in done.text, done


def test_mpirun_decides_the_exit_code(mpi, tmp_path):
    done = run("-np", "1", "--mpi", "sh", "-c", "exit 3", env=dict(mpi, TMPDIR=str(tmp_path)))
    assert done.code == 3
    left = [name for name in os.listdir(tmp_path) if name.startswith("horovodrun-")]
    assert not left


def test_the_key_is_not_in_mpiruns_command_line(mpi, tmp_path):
    ask = ("import os, socket; s = socket.socket(socket.AF_UNIX); "
           "s.connect('\\0' + os.environ['HOROVOD_KEY_SOCKET'][1:]); "
           "print(s.recv(40)[8:].hex()); print(sorted(os.environ.items()))")
    done = run("-np", "1", "--mpi", "--verbose", sys.executable, "-c", ask, env=mpi)
    hex_key = re.search(r"[0-9a-f]{64}", done.text).group()
    assert done.text.count(hex_key) == 1, done


def test_no_mpirun_is_explained(tmp_path):
    done = run("-np", "1", "--mpi", "true", env={"PATH": str(tmp_path)})
    assert done.code == 1 and "MPI support has not been built" in done.error
    assert "HOROVOD_WITH_MPI=1" in done.error and "--gloo" in done.error


def test_a_long_wait_names_who_is_missing():
    script = ("import os, time; from horovod import _core as c\n"
              "if os.environ['HOROVOD_RANK'] == '1': time.sleep(11.5)\n"
              "c.init(None, False); c.shutdown()")
    done = run("-np", "2", sys.executable, "-c", script)
    assert done.code == 0, done
    assert re.search(r"1 of 2 processes wait in hvd.init for 1\d s; not there yet: ranks 1 on "
                     r"localhost \(what they do: horovodrun --status [0-9a-f]{8}\)\n", done.error)


# --- the same command on every node ----------------------------------------------------

def node(rank, port, key, *more, count=2, np=4):
    return ["-np", str(np), "--rendezvous", f"127.0.0.1:{port}", "--nnodes", str(count),
            "--node-rank", str(rank), "--key-file", key, *more]


def test_the_same_command_on_every_node(key):
    port = server.free_port()
    nodes = [start(*node(rank, port, key, *COMMAND)) for rank in (1, 0)]
    done = [finish(process) for process in nodes]
    assert [d.code for d in done] == [0, 0], done
    assert joined(done[1].text) == ["joined 0 4 0 2", "joined 1 4 1 2"]
    assert joined(done[0].text) == ["joined 2 4 0 2", "joined 3 4 1 2"]
    assert "[2]<stdout>:" in done[0].text


def test_nodes_of_different_size_and_numbers_from_the_scheduler(key):
    port = server.free_port()
    args = ["-np", "3", "--rendezvous", f"127.0.0.1:{port}", "--nnodes", "2", "-H", "a:1,b:2",
            "--key-file", key, *COMMAND]
    nodes = [start(*args, env={"SLURM_NODEID": str(rank)}) for rank in range(2)]
    done = [finish(process) for process in nodes]
    assert [d.code for d in done] == [0, 0], done
    assert joined(done[0].text + done[1].text) == ["joined 0 3 0 1", "joined 1 3 0 2",
                                                   "joined 2 3 1 2"]


def test_another_key_does_not_get_in(key, tmp_path):
    other = tmp_path / "other"
    other.write_text("ab" * 32)
    other.chmod(0o600)
    port = server.free_port()
    nodes = [start(*node(0, port, key, "--gloo-timeout-seconds", "3", *COMMAND, np=2)),
             start(*node(1, port, str(other), "--gloo-timeout-seconds", "3", *COMMAND, np=2))]
    done = [finish(process) for process in nodes]
    assert [d.code for d in done] == [1, 1] and not joined(done[0].text + done[1].text)


@pytest.mark.parametrize("change, text", [
    (["--nnodes", "3"], "not a multiple"), (["--node-rank", "5"], "--node-rank"),
    (["--key-file", "/nonexistent"], "/nonexistent"), (["--rendezvous", "nowhere"], "HOST:PORT"),
])
def test_mistakes_of_nodes_are_explained(key, change, text):
    done = run(*node(0, 29999, key), *change, "true")
    assert done.code == 1 and text in done.error


# --- no launcher -----------------------------------------------------------------------

def start_all(variables, size, **more):
    """`size` processes as a foreign launcher would start them: variables(rank)."""
    env = environment(**more)
    return env[MARK], [subprocess.Popen(COMMAND, env=dict(env, **variables(rank)),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
                       for rank in range(size)]


def slurm(port):
    name = os.uname().nodename
    return lambda rank: {
        "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NODELIST": name, "SLURM_JOB_ID": str(port), "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2"}


def open_mpi(port):
    return lambda rank: {
        "OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_MCA_ess_base_jobid": str(port)}


def pmi(port):
    return lambda rank: {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALRANKID": str(rank),
                         "MPI_LOCALNRANKS": "2", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def torchrun(port):
    return lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                         "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost",
                         "MASTER_PORT": str(port)}


def by_hand(port):
    return lambda rank: {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "2",
                         "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                         "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                         "HOROVOD_RENDEZVOUS_SERVE": "1"}


@pytest.mark.parametrize("way", [slurm, open_mpi, pmi, torchrun, by_hand])
def test_no_launcher_at_all(way, key):
    mark, processes = start_all(way(server.free_port()), 2, HOROVOD_KEY_FILE=key)
    done = [p.communicate(timeout=60) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], done
    assert joined("".join(out for out, _ in done)) == all_of(2)
    assert "refused" not in "".join(err for _, err in done)     # who races over addresses is ours
    assert_gone(mark)


def test_plain_mpirun(mpi, key):
    done = subprocess.run(["mpirun", "-np", "2", *COMMAND], capture_output=True, text=True,
                          env=environment(dict(mpi, HOROVOD_KEY_FILE=key,
                                               OMPI_ALLOW_RUN_AS_ROOT="1",
                                               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                               OMPI_MCA_rmaps_base_oversubscribe="1")),
                          stdin=subprocess.DEVNULL, timeout=90)
    assert done.returncode == 0, done
    assert joined(done.stdout) == all_of(2)


def test_without_a_key_it_says_how_to_get_one():
    env = environment(by_hand(1)(0), HOME="/nonexistent")
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "HOROVOD_KEY_FILE" in done.stderr


# --- two hosts as network namespaces ----------------------------------------------------

def can_make_namespaces():
    return os.getuid() == 0 and server.available() and subprocess.run(
        ["unshare", "-n", "true"], capture_output=True).returncode == 0


@pytest.fixture
def two_hosts(tmp_path):
    """The launcher's side stays where it is; host nodeb is a namespace with an sshd."""
    if not can_make_namespaces():
        pytest.skip("needs root, sshd and network namespaces")
    # Names and addresses of this process: another run may be under way on this machine.
    name, link = f"hvd{os.getpid() % 10000}", f"hv{os.getpid() % 10000}"
    net = f"10.213.{os.getpid() % 250 + 1}"

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True)
    ip("netns", "add", name)
    try:
        ip("link", "add", f"{link}a", "type", "veth", "peer", "name", f"{link}b", "netns", name)
        ip("addr", "add", f"{net}.1/24", "dev", f"{link}a")
        ip("link", "set", f"{link}a", "up")
        ip("-n", name, "addr", "add", f"{net}.2/24", "dev", f"{link}b")
        ip("-n", name, "link", "set", f"{link}b", "up")
        ip("-n", name, "link", "set", "lo", "up")
        (tmp_path / "ssh").mkdir()
        sshd = server.Sshd(tmp_path / "ssh", f"{net}.2", 2222,
                           within=["ip", "netns", "exec", name])
        sshd.link, sshd.near = f"{link}a", f"{net}.1"
        try:
            yield sshd
        finally:
            sshd.close()
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", f"{link}a"], capture_output=True)


def test_the_address_is_chosen_by_reachability(two_hosts):
    """This machine has several addresses; the other host reaches one of them."""
    done = run("-np", "2", "-H", "localhost:1,nodeb:1", "sh", "-c",
               "echo $HOROVOD_GLOO_RENDEZVOUS_ADDR", env=two_hosts.env())
    assert done.lines() == ["[0]<stdout>:127.0.0.1", f"[1]<stdout>:{two_hosts.near}"], done
    done = run("-np", "2", "-H", "localhost:1,nodeb:1", "--network-interface", "lo", "true",
               env=two_hosts.env())
    assert done.code == 1 and "host nodeb reaches none of the addresses" in done.error


def test_a_job_over_two_hosts(two_hosts):
    done = run("-np", "3", "-H", "localhost:1,nodeb:2", *COMMAND, env=two_hosts.env())
    assert done.code == 0, done
    assert joined(done.text) == ["joined 0 3 0 1", "joined 1 3 0 2", "joined 2 3 1 2"]


def test_a_cut_cable_ends_both_sides(two_hosts):
    process = start("-np", "2", "-H", "localhost:1,nodeb:1", "sleep", "317", env=two_hosts.env())

    def sleeping():
        text = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        return text.splitlines().count("sleep 317") >= 2
    wait_until(sleeping)
    began = time.monotonic()
    subprocess.run(["ip", "link", "set", two_hosts.link, "down"], check=True)
    done = finish(process)                  # which also sees that no `sleep` is left
    assert done.code == 1 and time.monotonic() - began < 15
    assert "host nodeb" in done.error and "no sign of life" in done.error


# --- processes that workers start --------------------------------------------------------

CHILD = """
import multiprocessing, os
import horovod.numpy as hvd

def child(queue):
    try:
        hvd.init()
    except ValueError as error:
        queue.put(str(error))

if __name__ == "__main__":
    hvd.init()
    assert not [name for name in os.environ if name.startswith("HOROVOD_KEY")]
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    hvd.barrier()
"""


def test_a_child_of_a_worker_is_no_rank_and_is_told_so(tmp_path):
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    done = run("-np", "2", sys.executable, str(script))
    assert done.code == 0, done
    told = [line for line in done.text.splitlines() if "no job key" in line]
    assert len(told) == 2 and all('under if __name__ == "__main__":' in t for t in told), done
