"""What workers print: every byte, line by line, and never a reason to wait."""
import os
import re
import subprocess
import time

import pytest

from hvdrun import (HOROVODRUN, MARK, assert_gone, environment, finish, run, start,
                    wait_until)


def sh(text):
    return ["sh", "-c", text]


def test_streams_have_their_prefix():
    done = run("-np", "2", *sh("echo out; echo err >&2"))
    assert done.lines() == ["[0]<stdout>:out", "[1]<stdout>:out"]
    assert sorted(done.error.splitlines()) == ["[0]<stderr>:err", "[1]<stderr>:err"]


def test_timestamps():
    done = run("-np", "1", "--prefix-output-with-timestamp", "--log-without-timestamp",
               *sh("echo x"))
    assert re.fullmatch(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}"
                        r"\[0\]<stdout>:x\n", done.text)


def test_a_line_ends_at_carriage_return_too():
    done = run("-np", "1", "printf", r"10%%\r20%%\rdone\nx\r\ny")
    assert done.out == (b"[0]<stdout>:10%\r[0]<stdout>:20%\r[0]<stdout>:done\n"
                        b"[0]<stdout>:x\r\n[0]<stdout>:y")


def test_a_progress_bar_appears_at_once():
    process = start("-np", "1", *sh(r"printf '50%%\r'; read x"), stdin=subprocess.PIPE)
    assert os.read(process.stdout.fileno(), 100) == b"[0]<stdout>:50%\r"
    process.stdin.close()
    process.stdin = None
    assert finish(process).code == 1        # read found the end of file


def test_bytes_that_are_no_text_pass():
    done = run("-np", "1", "printf", r"\377\376\000x\n")
    assert done.out == b"[0]<stdout>:\xff\xfe\0x\n"


def test_characters_split_across_writes_pass():
    done = run("-np", "1", *sh(r"printf '\303'; printf '\244\n'"))
    assert done.out == "[0]<stdout>:ä\n".encode()


def test_an_unfinished_line_is_not_broken_into():
    done = run("-np", "2", *sh('if [ $HOROVOD_RANK = 0 ]; then printf first; '
                               'else echo second; fi'))
    assert done.code == 0
    assert sorted(done.text.splitlines()) == ["[0]<stdout>:first", "[1]<stdout>:second"]


def test_lines_of_many_ranks_stay_whole():
    done = run("-np", "8", *sh("i=0; while [ $i -lt 200 ]; do echo $HOROVOD_RANK.$i.abcdefghij; "
                               "i=$((i+1)); done"))
    lines = done.text.splitlines()
    assert len(lines) == 1600
    for rank in range(8):
        mine = [line for line in lines if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}]<stdout>:{rank}.{i}.abcdefghij" for i in range(200)]


def test_a_line_without_end_passes():
    done = run("-np", "1", *sh("head -c 3000000 /dev/zero | tr '\\0' x"))
    assert done.out == b"[0]<stdout>:" + b"x" * 3000000


@pytest.mark.parametrize("np, names", [(1, ["rank.0"]), (2, ["rank.0", "rank.1"]),
                                       (11, [f"rank.{i:02}" for i in range(11)])])
def test_files(tmp_path, np, names):
    folder = tmp_path / "a" / "b"
    for text in ("longer text", "short"):           # the second run truncates
        done = run("-np", str(np), "--output-filename", str(folder),
                   *sh(f"echo {text}; echo e >&2"))
        assert done.code == 0
    assert sorted(os.listdir(folder)) == names
    for rank, name in enumerate(names):
        assert (folder / name / "stdout").read_text() == f"[{rank}]<stdout>:short\n"
        assert (folder / name / "stderr").read_text() == f"[{rank}]<stderr>:e\n"
        assert (folder / name / "stdout").stat().st_mode & 0o777 == 0o600
    assert f"[{np - 1}]<stdout>:short" in done.lines()


@pytest.mark.parametrize("place", ["rank.0", "rank.0/stdout"])
def test_files_are_not_written_through_links(tmp_path, place):
    victim = tmp_path / "victim"
    (tmp_path / "target").mkdir()
    victim.write_text("precious")
    link = tmp_path / "out" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "target" if place == "rank.0" else victim)
    done = run("-np", "1", "--output-filename", str(tmp_path / "out"), "echo", "x")
    assert done.code == 1 and "--output-filename" in done.error
    assert victim.read_text() == "precious" and not list((tmp_path / "target").iterdir())


def test_stdin_goes_to_rank_0():
    done = run("-np", "3", *sh("wc -c"), input=b"x" * 100000)
    assert done.lines() == ["[0]<stdout>:100000", "[1]<stdout>:0", "[2]<stdout>:0"]


def test_a_grandchild_that_keeps_stdout_does_not_hold_the_job():
    done = run("-np", "2", *sh("sleep 60 & echo started"))
    assert done.code == 0 and done.text.count("started") == 2 and done.seconds < 10
    done = run("-np", "1", *sh("(trap '' TERM; while :; do sleep 1; done) & echo started"))
    assert done.code == 0 and done.seconds < 10


def test_a_reader_that_leaves_does_not_end_the_job(tmp_path):
    process = start("-np", "1", *sh(f"echo a; sleep 0.2; seq 200000; touch {tmp_path}/end"))
    os.read(process.stdout.fileno(), 20)
    process.stdout.close()
    process.stdout = None
    assert finish(process).code == 0
    assert (tmp_path / "end").exists()


def test_a_slow_terminal_blocks_nobody(tmp_path):
    """Nobody reads stdout: the worker writes 32 MB all the same, and what was dropped is
    counted when somebody reads again."""
    process = start("-np", "1", *sh(f"seq 4500000; touch {tmp_path}/end"))
    wait_until((tmp_path / "end").exists, 60)
    done = finish(process)
    assert done.code == 0
    dropped = sum(int(n) for n in re.findall(r"(\d+) bytes\) of output dropped", done.error))
    dropped += sum(int(n) for n in re.findall(r"horovodrun: (\d+) bytes of output", done.text))
    assert dropped > 1000000
    assert all(line.startswith("[0]<stdout>:") for line in done.text.splitlines())


def test_a_reader_that_is_slow_loses_nothing():
    process = start("-np", "1", "seq", "1000000", stderr=subprocess.DEVNULL)
    count = 0
    while data := os.read(process.stdout.fileno(), 1 << 20):
        count += data.count(b"\n")
        time.sleep(0.01)
    process.stdout.close()
    process.stdout = None
    assert finish(process).code == 0 and count == 1000000


def test_the_users_terminal_stays_blocking():
    import fcntl
    read, write = os.pipe()
    process = subprocess.Popen([__import__("hvdrun").HOROVODRUN, "-np", "1", "echo", "x"],
                               env=environment(), stdin=subprocess.DEVNULL, stdout=write,
                               stderr=write)
    assert process.wait(30) == 0
    assert not fcntl.fcntl(write, fcntl.F_GETFL) & os.O_NONBLOCK
    os.close(write)
    os.close(read)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors(closed, tmp_path):
    """As a daemon starts it: what cannot be shown is dropped, the rest is as ever."""
    env = environment()
    text = (f'exec "$0" -np 2 --output-filename {tmp_path} sh -c "wc -c; echo out; echo err >&2" '
            f"{closed}")
    done = subprocess.run(["sh", "-c", text, HOROVODRUN], env=env, capture_output=True,
                          stdin=subprocess.DEVNULL, timeout=60)
    assert_gone(env[MARK])
    assert done.returncode == 0, done
    shown = [b"[%d]<stdout>:%s" % (r, w) for r in range(2) for w in (b"0", b"out")]
    assert sorted(done.stdout.splitlines()) == (sorted(shown) if ">&-" not in closed.split()
                                                else [])
    assert sorted(done.stderr.splitlines()) == ([b"[0]<stderr>:err", b"[1]<stderr>:err"]
                                                if "2>&-" not in closed.split() else [])
    assert "out\n" in (tmp_path / "rank.0/stdout").read_text()


def limited(bytes):
    import resource
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.RLIM_INFINITY))


def test_a_file_that_is_full_is_told_once(tmp_path):
    """The job goes on, its lines are shown, but nobody takes the files for whole."""
    done = run("-np", "2", "--output-filename", str(tmp_path), *sh("seq 3000; seq 3000 >&2"),
               preexec_fn=limited(8192))
    assert done.code == 1
    assert done.text.count("\n") == 6000
    told = [line for line in done.error.splitlines() if not re.match(r"\[\d\]<stderr>:", line)]
    assert len(told) == 1, told
    assert re.fullmatch(f"horovodrun: {tmp_path}/rank.[01]/std(out|err): File too large; what is "
                        "written there from now on is lost, and the exit code will not be 0",
                        told[0])
    assert (tmp_path / "rank.0/stdout").stat().st_size == 8192


def test_a_full_disk_behind_stdout_is_told():
    with open("/dev/full", "wb") as full:
        done = run("-np", "1", "echo", "x", stdout=full)
    assert done.code == 1
    assert done.error.startswith("horovodrun: stdout: No space left on device; ")


def test_a_reader_that_has_gone_is_no_loss():
    process = start("-np", "1", *sh("sleep 0.2; seq 100000"))
    process.stdout.close()
    assert process.wait(60) == 0
    process.stderr.close()
