"""horovodrun --status: a look into jobs that run, by the user whose jobs they are."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import sshd as server
from hvdrun import HOROVODRUN, environment, finish, run, start, wait_until

# The last rank does not come to the second allreduce before the file is there.
LATE = """
import os, sys, time
import numpy as np
import horovod.numpy as hvd
hvd.init()
def load_batch():
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
hvd.allreduce(np.ones(4), name="first")
if hvd.rank() == hvd.size() - 1:
    load_batch()
hvd.allreduce(np.ones(1000, np.float32), name="second")
hvd.shutdown()
"""


def status(*words, env=None):
    """The jobs that --status --json tells of."""
    done = subprocess.run([HOROVODRUN, "status", "--json", *map(str, words)],
                          env=environment(env), capture_output=True, timeout=60)
    return json.loads(done.stdout)["jobs"]


def late_job(tmp_path, np, *options, env=None):
    script = tmp_path / "late.py"
    script.write_text(LATE)
    return start("-np", str(np), *options, sys.executable, str(script), str(tmp_path / "go"),
                 env=env)


def stuck(process, np):
    """The job, once the last rank is all that the others wait for."""
    def look():
        jobs = status(process.pid)
        waits = [w for job in jobs for w in job["waits"] if w["tensor"].endswith("second")]
        return jobs and waits and waits[0]["waiting"] == list(range(np - 1)) and \
            waits[0]["missing"] == [np - 1] and jobs[0]["ranks"][-1].get("where") and jobs[0]
    return wait_until(look)


@pytest.mark.parametrize("np", [2, 16])
def test_who_waits_for_whom_and_where_it_is(tmp_path, np):
    process = late_job(tmp_path, np)
    job = stuck(process, np)
    assert job["size"] == np and [r["rank"] for r in job["ranks"]] == list(range(np))
    assert "late.py" in job["ranks"][-1]["where"] and "in load_batch" in job["ranks"][-1]["where"]
    assert job["ranks"][0]["state"] == f"in allreduce.second, waits for rank {np - 1}"
    assert all(r["memory_bytes"] > 1e6 and r["operations"]["allreduce"]["count"] == 1
               for r in job["ranks"])
    assert job["launcher"]["pid"] == process.pid and "late.py" in job["launcher"]["command"]
    page = run("--status", str(process.pid))
    assert f"waits for rank {np - 1}" in page.text and "in load_batch" in page.text, page
    (tmp_path / "go").touch()
    assert finish(process).code == 0
    assert run("--status", str(process.pid)).code == 1


def test_a_stopped_rank_is_told_and_delays_nobody_else(tmp_path):
    process = late_job(tmp_path, 3)
    last = stuck(process, 3)["ranks"][2]["pid"]
    os.kill(last, signal.SIGSTOP)
    job = status(process.pid)[0]
    assert job["ranks"][2]["state"].startswith("stopped") and not job["ranks"][2]["answers"]
    assert job["ranks"][0]["answers"] and job["ranks"][2]["memory_bytes"] > 1e6
    os.kill(last, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert finish(process).code == 0


def test_a_process_without_launcher_is_found_and_may_refuse():
    code = "import horovod.numpy as hvd; hvd.init(); print(flush=True); input()"
    for answers, env in ((True, {}), (False, {"HOROVOD_STATUS": "0"})):
        process = subprocess.Popen([sys.executable, "-c", code], env=environment(env),
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process.stdout.readline()
        jobs = status(process.pid)
        assert len(jobs) == answers
        if answers:
            assert "launcher" not in jobs[0] and jobs[0]["ranks"][0]["pid"] == process.pid
        process.communicate(b"\n")
        assert process.returncode == 0 and not status(process.pid)


def test_watch_goes_on_until_ctrl_c(tmp_path):
    process = late_job(tmp_path, 2)
    stuck(process, 2)
    viewer = start("--status", "--watch", str(process.pid))
    titles = 0
    while titles < 2:
        line = viewer.stdout.readline().decode()
        assert line, finish(viewer)
        titles += line.startswith("Job ")
    viewer.send_signal(signal.SIGINT)
    assert finish(viewer).code == 0
    (tmp_path / "go").touch()
    assert finish(process).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_sees_nothing(tmp_path):
    process = late_job(tmp_path, 2)
    stuck(process, 2)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(HOROVODRUN, folder)
        done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", program, "--status",
                               "--json"], cwd="/", env=environment(), capture_output=True)
    assert json.loads(done.stdout) == {"jobs": []}, done
    (tmp_path / "go").touch()
    assert finish(process).code == 0


@pytest.mark.skipif(not server.available(), reason="no sshd on this machine")
def test_ranks_of_other_hosts_come_through_the_launcher(tmp_path):
    sshd = server.Sshd(tmp_path)
    try:
        process = late_job(tmp_path, 3, "-H", "localhost:1,nodeb:2", env=sshd.env())
        job = stuck(process, 3)
        assert [r["host"] for r in job["ranks"]] == ["localhost", "nodeb", "nodeb"]
        assert all(host["answers"] for host in job["launcher"]["hosts"])
        assert abs(job["launcher"]["hosts"][1]["clock_offset_seconds"]) < 0.5
        assert len(status("@nodeb", job["job"][:8], env=sshd.env())) == 1
        (tmp_path / "go").touch()
        assert finish(process).code == 0
    finally:
        sshd.close()


def test_words_that_are_no_job_are_refused():
    for words in (["a b"], ["@x;y"], ["@-oProxyCommand=x"], ["a", "b"]):
        assert run("status", *words).code == 2
