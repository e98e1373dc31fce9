"""``_core.Driver``: the elastic driver for those who start workers from Python."""
import os
import select
import subprocess
import sys

import pytest

from horovod import _core

WORKER = """
import os
from horovod import _core
key = bytes.fromhex(input())
_core.set_key(key)
_core.init(None, False)
print(_core.rank(), _core.size(), _core.elastic_info()["generation"], flush=True)
_core.shutdown()
"""


def actions(driver, limit=60.0):
    """The driver's actions until the end."""
    while True:
        action = driver.next()
        if action is None:
            assert select.select([driver], [], [], limit)[0], driver.status()
            continue
        yield action
        if action["kind"] == "end":
            return


def test_a_job_of_two():
    key = _core.generate_key()
    driver = _core.Driver(key, "job", ["127.0.0.1"], 0, 2, min_np=1, max_np=2)
    driver.hosts([("localhost", 2)])
    processes, end = {}, None
    for action in actions(driver):
        if action["kind"] == "start":
            processes[action["worker"]] = process = subprocess.Popen(
                [sys.executable, "-c", WORKER], text=True, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env={**os.environ, **action["env"]})
            process.stdin.write(key.hex() + "\n")
            process.stdin.flush()
        elif action["kind"] == "rank" and action["rank"] == 1:
            for worker, process in processes.items():
                driver.worker_ended(worker, process.wait(60))
        elif action["kind"] == "end":
            end = action
    assert end["ok"], end
    assert sorted(p.stdout.read() for p in processes.values()) == ["0 2 1\n", "1 2 1\n"]
    driver.close()
    with pytest.raises(ValueError, match="closed"):
        driver.next()


def test_what_cannot_be():
    with pytest.raises(ValueError, match="must not decrease"):
        _core.Driver(_core.generate_key(), "", [], 0, 1, min_np=2)
    with pytest.raises(ValueError, match="job key has 3 bytes"):
        _core.Driver(b"abc", "", [], 0, 1)
    driver = _core.Driver(_core.generate_key(), "", [], 0, 1)
    with pytest.raises(ValueError, match="with 0 slots"):
        driver.hosts([("a", 0)])
    driver.discovery_failed("nobody answers")
    end = list(actions(driver))[-1]
    assert not end["ok"] and end["text"] == "nobody answers"
