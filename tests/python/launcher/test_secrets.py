"""The job key: who gets it, and where it must not be found."""
import glob
import os
import re
import resource
import shutil
import signal
import sys

import pytest

from hvdrun import BIN, assert_gone, finish, processes, run, start, wait_until

JOIN = ("import os; from horovod import _core as c; c.init(None, False); "
        "os.write(1, b'joined %d %d\\n' % (c.rank(), c.size())); c.shutdown()")


def joined(done):
    return sorted(line[line.index("joined"):] for line in done.text.splitlines()
                  if "joined" in line)


# --- wrappers that close descriptors ----------------------------------------------------

KEEPS_A_FILE = """
import os, sys
mine = open(sys.argv[1])
assert mine.fileno() == int(os.environ["HOROVOD_KEY_FD"])       # the number is taken now
from horovod import _core as c
c.init(None, False)
os.write(1, b"joined %d %d %s\\n" % (c.rank(), c.size(), mine.read().encode()))
c.shutdown()
"""
WRAPPER = ("import subprocess, sys; "
           "sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode)")


@pytest.mark.parametrize("size", [1, 2])
def test_a_wrapper_in_python(tmp_path, size):
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "train.py").write_text(KEEPS_A_FILE)
    (tmp_path / "mine").write_text("the user's text")
    done = run("-np", str(size), sys.executable, "wrapper.py", "train.py", "mine", cwd=tmp_path)
    assert done.code == 0, done
    assert joined(done) == [f"joined {r} {size} the user's text" for r in range(size)]


@pytest.mark.parametrize("lines", ["exec 3<&-", "exec 3</dev/null", 'env -i PATH="$PATH" true'])
def test_a_wrapper_in_shell(tmp_path, lines):
    script = tmp_path / "wrapper.sh"
    script.write_text(f'#!/bin/sh\n{lines}\n"$@"\n')
    script.chmod(0o755)
    done = run("-np", "2", str(script), sys.executable, "-c", JOIN)
    assert done.code == 0, done
    assert joined(done) == ["joined 0 2", "joined 1 2"]


def test_without_the_socket_the_lost_descriptor_is_explained(tmp_path):
    """As a launcher would that hands out descriptors only."""
    (tmp_path / "mine").write_text("the user's text")
    done = run("-np", "2", "sh", "-c", 'unset HOROVOD_KEY_SOCKET; exec 3<mine; exec "$@"', "sh",
               sys.executable, "-c", JOIN, cwd=tmp_path)
    assert done.code != 0
    assert "HOROVOD_KEY_FD=3" in done.error and "not the job key" in done.error


def test_no_key_in_environment_arguments_or_files(tmp_path):
    script = ("od -An -v -tx1 -j8 /proc/self/fd/3 | tr -d ' \\n'; echo; "
              "tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/$PPID/cmdline; "
              "env; ls -A")
    done = run("-np", "1", "sh", "-c", script, cwd=tmp_path, env={"TMPDIR": str(tmp_path)})
    lines = done.text.splitlines()
    key = lines[0][-64:]
    assert done.code == 0 and len(bytes.fromhex(key)) == 32
    assert key not in "".join(lines[1:]) and not os.listdir(tmp_path)


# --- core dumps ------------------------------------------------------------------------

WAITS = """
import os, sys, time
from horovod import _core as c
c.init(None, False)
open(f"ready.{c.rank()}", "w").write(str(os.getpid()))
time.sleep(600)
"""
# The key, seen from outside the worker, so that the test leaves no copy in it.
SHOW_KEY = "od -An -v -tx1 -j8 /proc/self/fd/3 > key; exec \"$@\""


def kernel_writes_cores_here():
    with open("/proc/sys/kernel/core_pattern") as file:
        return re.fullmatch(r"core[^/|]*", file.read().strip()) is not None


def dumped_memory(pid):
    """What a core would hold, where core_pattern hands cores to another program: all
    memory that can be read, less what is marked to be left out (VmFlags dd)."""
    parts, span = [], None
    with open(f"/proc/{pid}/smaps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line):
                span = [int(text, 16) for text in match.groups()]
            elif re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                span = None
            elif line.startswith("VmFlags:") and span and " dd" not in line and " io" not in line:
                try:
                    parts.append(os.pread(memory.fileno(), span[1] - span[0], span[0]))
                except OSError:
                    pass
    return b"".join(parts)


def has_memory(pid):
    try:
        with open(f"/proc/{pid}/maps") as file:
            return bool(file.read())
    except OSError:
        return False


def core_of(pid, folder):
    if not kernel_writes_cores_here():
        os.kill(pid, signal.SIGSTOP)
        return dumped_memory(pid)
    os.kill(pid, signal.SIGABRT)
    wait_until(lambda: not has_memory(pid))
    core, = glob.glob(str(folder / "core*"))
    with open(core, "rb") as file:
        return file.read()


def allow_cores():
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)


def pid_of(process, role):
    names = {"agent": "horovod-agent", "guard": "horovod-guard"}
    return next(pid for pid in processes(process.mark)
                if open(f"/proc/{pid}/comm").read().strip() == names[role])


@pytest.mark.parametrize("role, env", [
    ("worker", {}), ("worker", {"HOROVOD_SHM_DISABLE": "1"}), ("agent", {}), ("guard", {}),
    ("launcher", {})])
def test_the_key_is_in_no_core_dump(tmp_path, role, env):
    (tmp_path / "waits.py").write_text(WAITS)
    process = start("-np", "2", "sh", "-c", SHOW_KEY, "sh", sys.executable, "waits.py", env=env,
                    cwd=tmp_path, preexec_fn=allow_cores)
    try:
        wait_until(lambda: len(glob.glob(str(tmp_path / "ready.*"))) == 2)
        key = bytes.fromhex((tmp_path / "key").read_text())
        if role == "worker":
            pid = wait_until(lambda: int((tmp_path / "ready.0").read_text() or 0))
        else:
            pid = process.pid if role == "launcher" else pid_of(process, role)
        core = core_of(pid, tmp_path)
    finally:
        process.kill()
        process.communicate()
        assert_gone(process.mark)
    assert len(key) == 32 and process.mark.encode() in core
    # Whole, as text, and by halves, as registers would hold it.
    for part in (key, key[:16], key[16:], key.hex().encode(), key.hex().upper().encode()):
        assert core.count(part) == 0, f"{role}: {core.count(part)} copies"


# --- mpirun ----------------------------------------------------------------------------

@pytest.mark.parametrize("how", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_mpirun_leaves_nothing_in_the_file_system(tmp_path, how):
    program = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
    if program is None:
        pytest.skip("no mpirun")
    folder, temporary = tmp_path / "bin", tmp_path / "tmp"
    folder.mkdir()
    temporary.mkdir()
    # Ends before mpirun does anything, and when it is to start: the moments that count.
    (folder / "mpirun").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exec %s "$@"\nls -A %s >%s/seen\nexec sleep 600\n'
        % (program, temporary, tmp_path))
    (folder / "mpirun").chmod(0o755)
    process = start("-np", "2", "--mpi", "true",
                    env={"TMPDIR": str(temporary), "PATH": f"{folder}:{BIN}:{os.environ['PATH']}"})
    wait_until((tmp_path / "seen").exists)
    process.send_signal(getattr(signal, how))
    finish(process)
    assert not os.listdir(temporary) and not (tmp_path / "seen").read_text()


def test_ending_a_job_during_init_leaves_nothing(tmp_path):
    script = ("import os, time; open('begun.' + os.environ['HOROVOD_RANK'], 'w').close()\n"
              "if os.environ['HOROVOD_RANK'] == '1': time.sleep(600)\n"
              "from horovod import _core as c; c.init(None, False)")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = start("-np", "2", sys.executable, "-c", script, cwd=tmp_path,
                    env={"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": str(temporary)})
    wait_until(lambda: any("0100007F" in line for line in waiting(process.mark)))
    process.terminate()
    finish(process)
    assert not os.listdir(temporary)


def waiting(mark):
    """Listening TCP sockets of the job's ranks: a rank has them while it waits in init."""
    for pid in processes(mark):
        try:
            links = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
            if "python" not in open(f"/proc/{pid}/comm").read():
                continue
            with open(f"/proc/{pid}/net/tcp") as file:
                yield from (line for line in file if " 0A " in line
                            and f"socket:[{line.split()[9]}]" in links)
        except OSError:
            continue
