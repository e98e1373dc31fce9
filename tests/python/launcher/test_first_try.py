"""The first try of somebody who has prepared nothing: torchrun, mpirun, Slurm, a notebook, a bare
environment.  Each gets an empty home, so that it meets what a new user meets."""
import os
import shlex
import stat
import subprocess
import sys

import pytest

import sshd as server
from hvdrun import BIN, MARK, assert_gone, environment
from test_ways import COMMAND, all_of, joined, mpi, slurm, start_all  # noqa: F401  (mpi: a fixture)

@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    return path


def check_key(home):
    """It was made, by one of the ranks, and nobody else can read it."""
    file = home / ".horovod" / "key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert len(file.read_text().strip()) == 64
    assert [entry.name for entry in file.parent.iterdir()] == ["key"]


def test_torchrun(home):
    done = subprocess.run([str(BIN / "torchrun"), "--nproc-per-node", "2", "--master-port",
                           str(server.free_port()), "--no-python", *COMMAND],
                          env=environment(HOME=str(home)),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done
    assert joined(done.stdout) == all_of(2)
    check_key(home)


def test_mpirun(mpi, home):  # noqa: F811
    done = subprocess.run(["mpirun", "-np", "2", *COMMAND], capture_output=True, text=True,
                          env=environment(dict(mpi, HOME=str(home), OMPI_ALLOW_RUN_AS_ROOT="1",
                                               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                               OMPI_MCA_rmaps_base_oversubscribe="1")),
                          stdin=subprocess.DEVNULL, timeout=90)
    assert done.returncode == 0, done
    assert joined(done.stdout) == all_of(2)
    check_key(home)


def test_slurm(home):
    mark, processes = start_all(slurm(server.free_port()), 2, HOME=str(home))
    done = [p.communicate(timeout=60) for p in processes]
    assert [p.returncode for p in processes] == [0, 0], done
    assert joined("".join(out for out, _ in done)) == all_of(2)
    check_key(home)
    assert_gone(mark)


def test_the_same_command_on_every_node(home):
    place = f"localhost:{server.free_port()}"
    env = environment(HOME=str(home))
    nodes = [subprocess.Popen(["horovodrun", "-np", "2", "--nnodes", "2", "--rendezvous", place,
                               "--node-rank", str(rank), *COMMAND], env=env, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) for rank in (1, 0)]
    done = [p.communicate(timeout=60) for p in nodes]
    assert [p.returncode for p in nodes] == [0, 0], done
    check_key(home)
    assert_gone(env[MARK])


def test_a_notebook(home):
    """Plain Python is a job of one, which needs no key; `horovod.run` starts more of them."""
    cells = ("import horovod, horovod.numpy as hvd; hvd.init(); print('alone', hvd.size())\n"
             "hvd.shutdown()\n"
             "def train():\n    import horovod.numpy as hvd\n    hvd.init()\n"
             "    return hvd.rank(), hvd.size()\n\n"
             "print(horovod.run(train, num_proc=2))\n")
    done = subprocess.run([sys.executable, "-i", "-q"], input=cells, capture_output=True, text=True,
                          env=environment(HOME=str(home)), timeout=90)
    assert "alone 1" in done.stdout and "[(0, 2), (1, 2)]" in done.stdout, done
    assert not (home / ".horovod").exists()


def test_a_bare_environment(home, tmp_path):
    """As `docker exec` or cron give it: not even HOME.  The home is then what the system says."""
    if os.geteuid() != 0:
        pytest.skip("only root can have another /etc/passwd")
    passwd = tmp_path / "passwd"
    passwd.write_text(f"root:x:0:0:root:{home}:/bin/sh\n")
    name, port = os.uname().nodename, server.free_port()
    ranks = " & ".join(
        f"env -i SLURM_PROCID={rank} SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST={name} "
        f"SLURM_JOB_ID={port} {shlex.join(COMMAND)}" for rank in (0, 1))
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", f"mount --bind {passwd} /etc/passwd\n"
         f"env -i {BIN}/horovodrun -np 2 {shlex.join(COMMAND)}\n{ranks}\nwait"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done
    assert joined(done.stdout) == sorted(all_of(2) * 2), done
    check_key(home)


def test_other_homes_on_other_hosts_are_explained(tmp_path):
    """Each host has made a key of its own: the error says what to copy, and from where."""
    name = os.uname().nodename
    port, results = server.free_port(), []
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        env = environment(slurm(port)(rank), HOME=str(tmp_path / str(rank)),
                          SLURM_STEP_NUM_NODES="2", HOROVOD_GLOO_TIMEOUT_SECONDS="2")
        results.append(subprocess.Popen(COMMAND, env=env, stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    errors = [p.communicate(timeout=60)[1] for p in results]
    assert all(p.returncode != 0 for p in results), errors
    assert f"scp -p {name}:.horovod/key ~/.horovod/key" in errors[1], errors[1]
    assert "~/.horovod/key" in errors[0], errors[0]


def test_a_key_that_others_can_read_is_refused(home):
    key = home / ".horovod" / "key"
    key.parent.mkdir()
    key.write_text("0" * 64)
    key.chmod(0o644)
    env = environment(slurm(1)(1), HOME=str(home))
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "chmod 600" in done.stderr, done
    assert "[HVD-102, docs/troubleshooting.md]" in done.stderr, done


def test_mpirun_over_several_hosts_is_told_how():
    env = environment(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="4",
                      OMPI_COMM_WORLD_LOCAL_RANK="1", OMPI_COMM_WORLD_LOCAL_SIZE="2")
    done = subprocess.run(COMMAND, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "horovodrun --mpi -np 4" in done.stderr, done
