"""Arguments, environments and strangers that mean no good; secrets that must not show."""
import glob
import os
import random
import socket
import sys
import time

import pytest

from hvdrun import finish, living, run, start, wait_until

# Writes its arguments and the variables R0, R1, ... as hex to the file of its rank.
REPORT = """
import os, sys
with open(sys.argv[1] + '/' + os.environ['HOROVOD_RANK'], 'w') as file:
    for word in sys.argv[2:]:
        file.write('a ' + os.fsencode(word).hex() + '\\n')
    for name, value in os.environb.items():
        if name.startswith(b'R') and name[1:].isdigit():
            file.write('e ' + name.decode() + ' ' + value.hex() + '\\n')
"""


def random_bytes(rng):
    special = [b"'", b'"', b"$(x)", b"`", b"\\", b"\n", b"\t", b" ", b";", b"*", b"=", b"-",
               b"\xff"]
    parts = [rng.choice(special) if rng.random() < 0.5 else
             bytes(rng.randrange(1, 256) for _ in range(rng.randrange(8)))
             for _ in range(rng.randrange(6))]
    return b"".join(parts)


def check_byte_exact(tmp_path, count, seed, *options):
    rng = random.Random(seed)
    args = [random_bytes(rng) for _ in range(count // 2)]
    env = {f"R{i}": random_bytes(rng).decode("utf-8", "surrogateescape")
           for i in range(count // 2)}
    done = run("-np", "2", *options, sys.executable, "-S", "-c", REPORT, str(tmp_path),
               *args, env=env)
    assert done.code == 0, done
    for rank in "01":
        rows = (tmp_path / rank).read_text().splitlines()
        got = [bytes.fromhex(row[2:]) for row in rows if row.startswith("a")]
        assert got == args
        got = dict(row[2:].split(" ") for row in rows if row.startswith("e"))
        assert got == {k: os.fsencode(v).hex() for k, v in env.items()}


def test_arguments_and_variables_arrive_byte_for_byte(tmp_path):
    check_byte_exact(tmp_path, 600, 1)


@pytest.mark.long
def test_ten_thousand_arguments_and_variables_arrive_byte_for_byte(tmp_path):
    for seed in range(10):
        check_byte_exact(tmp_path, 1000, seed)


def test_a_large_environment_arrives():
    env = {f"BIG{i}": "x" * 100000 for i in range(17)}
    done = run("-np", "2", "sh", "-c", "printenv BIG16 | wc -c", env=env)
    assert done.lines() == ["[0]<stdout>:100001", "[1]<stdout>:100001"]


def test_an_environment_the_kernel_refuses_is_explained():
    """The largest environment the kernel gives the launcher is too large for its workers,
    which have some variables more."""
    fits, refused, done = 0, 8 << 20, None
    while refused - fits > 64:
        size = (fits + refused) // 2
        env = {f"BIG{i}": "x" * 100000 for i in range(size // 100000)}
        env["REST"] = "x" * (size % 100000)
        try:
            done = run("-np", "1", "true", env=env)
            fits = size
        except OSError:
            refused = size
    env = {f"BIG{i}": "x" * 100000 for i in range(fits // 100000)}
    done = run("-np", "1", "true", env=dict(env, REST="x" * (fits % 100000)))
    assert done.code == 1 and "Exit code: 126" in done.error
    assert "are more than the kernel takes" in done.error and "ulimit -s" in done.error


def all_processes(mark, names):
    """What /proc shows of all processes of the job, as bytes by file name."""
    shown = b""
    for pid in living(mark):
        for name in names:
            try:
                shown += open(f"/proc/{pid}/{name}", "rb").read() + b"\n"
            except OSError:
                pass
    return shown


def test_secrets_do_not_show(tmp_path):
    """The key is taken from the worker, as hvd.init would; then every place is searched."""
    canary = "canary-4711-secret"
    process = start("-np", "2", "--verbose", "--output-filename", str(tmp_path / "out"), "sh",
                    "-c", f"tail -c 32 /proc/self/fd/3 >{tmp_path}/key.$HOROVOD_RANK; "
                    f"mv {tmp_path}/key.$HOROVOD_RANK {tmp_path}/k.$HOROVOD_RANK; exec sleep 300",
                    env={"TOKEN": canary, "HOROVOD_LOG_LEVEL": "TRACE"})
    wait_until(lambda: len(glob.glob(f"{tmp_path}/k.*")) == 2)
    keys = [open(f"{tmp_path}/k.{r}", "rb").read() for r in range(2)]
    assert len(keys[0]) == 32 and keys[0] == keys[1]
    words = all_processes(process.mark, ["cmdline"])
    environs = all_processes(process.mark, ["environ"])
    process.terminate()
    done = finish(process)
    logs = done.out + done.err + b"".join(open(f, "rb").read() for f in
                                          glob.glob(f"{tmp_path}/out/*/*"))
    assert canary.encode() not in words + logs
    assert canary.encode() in environs              # it did reach them
    for key in keys:
        for form in (key, key.hex().encode(), key.hex().upper().encode()):
            assert form not in words + environs + logs


def test_every_run_has_its_own_key(tmp_path):
    for i in range(2):
        run("-np", "1", "sh", "-c", f"tail -c 32 /proc/self/fd/3 >{tmp_path}/{i}")
    first, second = (tmp_path / "0").read_bytes(), (tmp_path / "1").read_bytes()
    assert len(first) == len(second) == 32 and first != second


def listeners(mark):
    """(address, port) of the TCP sockets processes of the job listen at."""
    inodes, found = set(), []
    for pid in living(mark):
        try:
            for fd in os.listdir(f"/proc/{pid}/fd"):
                link = os.readlink(f"/proc/{pid}/fd/{fd}")
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
        except OSError:
            continue
    for name, family, size in (("tcp", socket.AF_INET, 4), ("tcp6", socket.AF_INET6, 16)):
        for row in open(f"/proc/net/{name}").read().splitlines()[1:]:
            columns = row.split()
            if columns[3] == "0A" and columns[9] in inodes:
                addr, port = columns[1].split(":")
                raw = b"".join(bytes.fromhex(addr[i:i + 8])[::-1] for i in range(0, 2 * size, 8))
                found.append((socket.inet_ntop(family, raw), int(port, 16)))
    return found


def test_a_local_job_listens_at_the_loopback_and_shrugs_off_garbage(tmp_path):
    process = start("-np", "2", "sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    wait_until(lambda: listeners(process.mark))
    places = listeners(process.mark)
    assert {addr for addr, _ in places} == {"127.0.0.1"}
    for addr, port in places:
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", b"\0" * 500, os.urandom(5000), b"\xff" * 4):
            with socket.create_connection((addr, port), 5) as stranger:
                stranger.sendall(data)
    (tmp_path / "go").touch()
    done = finish(process)
    assert (done.code, done.out) == (0, b"")


def test_host_names_cannot_become_commands(tmp_path):
    for name in (f"a;touch {tmp_path}/x;", f"$(touch {tmp_path}/x)", f"`touch {tmp_path}/x`",
                 f"-oProxyCommand=touch {tmp_path}/x", "a\nb", "\x1b]0;x\x07"):
        done = run("-np", "1", "-H", f"{name}:1", "true")
        assert done.code == 1 and "Invalid host input" in done.error
        assert "\x1b" not in done.error
    time.sleep(0.05)
    assert not (tmp_path / "x").exists()
