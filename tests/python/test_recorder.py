"""The reader of flight recorder files: who did what last, and who lacks which operation."""
import subprocess
import sys

from horovod import recorder

RANK_0 = """\
# rank 0 of 3 pid 10 at 1000.500000 host node1 why stall
7 -2.000000s submit allreduce set 0 4096 bytes OK grad/1
8 -1.900000s done allreduce set 0 4096 bytes OK grad/1
9 -1.500000s submit allreduce set 0 8 bytes OK a name with blanks
10 -0.500000s submit barrier set 1 0 bytes OK barrier.noname
11 -0.000001s note - set 0 0 bytes STALLED stall report
"""
RANK_1 = """\
garbage before
# rank 1 of 3 pid 11 at 900.000000 host node2 why SIGUSR2
1 -0.100000s done allreduce set 0 4096 bytes OK old
# rank 1 of 3 pid 11 at 1000.400000 host node2 why stall
3 -1.800000s done allreduce set 0 4096 bytes OK grad/1
half a line
"""


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def test_the_newest_dump_of_each_rank_counts(tmp_path):
    dumps = recorder.read([write(tmp_path, "0", RANK_0), write(tmp_path, "1", RANK_1)])
    assert sorted(dumps) == [0, 1]
    assert dumps[1].time == 1000.4 and len(dumps[1].records) == 1
    assert dumps[0].records[2].name == "a name with blanks"
    assert abs(dumps[0].records[0].time - 998.5) < 1e-6


def test_open_operations_and_who_lacks_them(tmp_path):
    dumps = recorder.read([write(tmp_path, "0", RANK_0), write(tmp_path, "1", RANK_1)])
    found = recorder.lacking(dumps)
    where, missing = found[(0, "allreduce", "a name with blanks")]
    assert list(where) == [0] and missing == [1]
    # Rank 1 never used set 1: it is no member as far as the files tell.
    assert found[(1, "barrier", "barrier.noname")][1] == []
    assert (0, "allreduce", "grad/1") not in found


def test_one_command(tmp_path):
    files = [write(tmp_path, "0", RANK_0), write(tmp_path, "1", RANK_1)]
    result = subprocess.run([sys.executable, "-m", "horovod.recorder", "-n", "2", *files],
                            capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "no file of ranks: 2" in result.stdout
    assert ("allreduce a name with blanks, set 0: submitted by ranks 0 (1.500 s ago), "
            "not by ranks 1") in result.stdout
    assert "grad/1  set 0, 4096 bytes, OK" in result.stdout


def test_the_folder_of_a_job(tmp_path):
    write(tmp_path, "rank0-10.txt", RANK_0)
    write(tmp_path, "rank1-11.txt", RANK_1)
    write(tmp_path, "other.txt", RANK_0.replace("rank 0", "rank 2"))
    assert sorted(recorder.read([str(tmp_path)])) == [0, 1]


def test_files_that_are_none(tmp_path, capsys):
    assert recorder.main([str(tmp_path / "missing")]) == 1
    assert recorder.main([write(tmp_path, "x", "nothing of ours\n")]) == 1
    assert "no flight recorder" in capsys.readouterr().err
