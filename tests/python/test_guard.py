"""Nothing outlives a test session, also one that is killed."""
import os
import signal
import subprocess
import sys
import textwrap
import time

HERE = os.path.dirname(os.path.abspath(__file__))


def test_a_killed_session_leaves_nothing(tmp_path):
    (tmp_path / "conftest.py").write_text("import guard; guard.start()\n")
    (tmp_path / "test_it.py").write_text(textwrap.dedent("""
        import pathlib, subprocess, time

        def test_it():
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            pathlib.Path("pid").write_text(str(child.pid))
            pathlib.Path("pid").rename("pid.whole")
            time.sleep(600)
    """))
    env = {**os.environ, "PYTHONPATH": HERE}
    with subprocess.Popen([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                           str(tmp_path)], cwd=tmp_path, env=env,
                          stdout=subprocess.DEVNULL) as session:
        while not (tmp_path / "pid.whole").exists():
            assert session.poll() is None
            time.sleep(0.05)
        session.send_signal(signal.SIGKILL)
    child = (tmp_path / "pid.whole").read_text()
    while runs(child):                  # pytest-timeout ends it if that never happens
        time.sleep(0.05)


def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
