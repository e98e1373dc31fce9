"""Coordinator: the topology, the server and its generations; no Ray is needed."""
import contextlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import pytest

pytest.importorskip("ray")

from horovod.ray.runner import Coordinator, MiniSettings  # noqa: E402
from horovod.runner.common.util import secret, timeout  # noqa: E402


@contextlib.contextmanager
def coordinator(nodes, **kwargs):
    """With rank i on nodes[i]."""
    c = Coordinator(MiniSettings(timeout_s=30), **kwargs)
    try:
        for rank, node in enumerate(nodes):
            c.register(f"host-{node}", f"node-{node}", rank)
        yield c
    finally:
        c.shutdown()


def column(info, name):
    return [entry["HOROVOD_" + name] for entry in info.values()]


def test_nobody_registered():
    with coordinator([]) as c:
        assert c.world_size == 0
        assert c.node_id_string == ""
        assert c.hostnames == set()
        assert c.finalize_registration() == {}


def test_twelve_ranks_dealt_to_three_nodes():
    with coordinator([r % 3 for r in range(12)]) as c:
        info = c.finalize_registration()
        assert c.node_id_string == "node-0:4,node-1:4,node-2:4"
        assert c.node_id_by_rank["node-1"] == [1, 4, 7, 10]
    assert sorted(info) == list(range(12))
    assert set(column(info, "CROSS_SIZE")) == {3}
    assert set(column(info, "CROSS_RANK")) == {0, 1, 2}
    assert set(column(info, "LOCAL_SIZE")) == {4}
    assert set(column(info, "LOCAL_RANK")) == {0, 1, 2, 3}


@pytest.mark.parametrize("one_name", [False, True])
def test_nodes_of_different_size(one_name):
    c = Coordinator(MiniSettings())
    rank = 0
    for node, count in enumerate([5, 4, 3]):
        for _ in range(count):
            c.register("host" if one_name else f"host-{node}", f"node-{node}", rank)
            rank += 1
    info = c.finalize_registration()
    assert len(c.hostnames) == (1 if one_name else 3)
    by_size = {size: [e["HOROVOD_CROSS_RANK"] for e in info.values()
                      if e["HOROVOD_CROSS_SIZE"] == size] for size in (1, 2, 3)}
    assert by_size[1] == [0]
    assert sorted(by_size[2]) == [0, 1]
    assert len(by_size[3]) == 9


WORKER = """
import json, sys
import numpy as np
import horovod.numpy as hvd
hvd.init()
total = hvd.allreduce(np.array([float(hvd.rank())]), op=hvd.Sum)
import os
print(json.dumps([hvd.rank(), hvd.local_rank(), hvd.cross_rank(), float(total[0]),
                  os.environ.get("HOROVOD_KEY")]))
hvd.shutdown()
"""


def run_workers(c, variables):
    """The ranks of a coordinator as plain processes, as Ray Train V1 sets them up."""
    info = c.finalize_registration()
    nodes = {rank: node for node, ranks in c.node_id_by_rank.items() for rank in ranks}
    processes = [subprocess.Popen(
        [sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **variables, **{k: str(v) for k, v in info[rank].items()},
             "HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(c.world_size),
             "HOROVOD_HOSTNAME": nodes[rank]}) for rank in sorted(info)]
    results = [json.loads(p.communicate(timeout=60)[0]) for p in processes]
    assert [p.returncode for p in processes] == [0] * len(processes)
    return results


def test_workers_meet_again_in_a_new_generation():
    """Ranks of a node are not neighbours, nodes are of different size, names are equal."""
    with coordinator([0, 1, 0]) as c:
        first = c.establish_rendezvous()
        assert run_workers(c, first) == [[0, 0, 0, 3.0, None], [1, 0, 1, 3.0, None],
                                         [2, 1, 0, 3.0, None]]
        second = c.establish_rendezvous()
        assert first["HOROVOD_GENERATION"] == "0" and second["HOROVOD_GENERATION"] == "1"
        assert {k: v for k, v in first.items() if k != "HOROVOD_GENERATION"} == \
            {k: v for k, v in second.items() if k != "HOROVOD_GENERATION"}
        assert [r[3] for r in run_workers(c, second)] == [3.0] * 3


def test_variables_are_text_and_the_key_comes_only_where_it_must():
    with coordinator([0, 0], generation=7) as c:
        variables = c.serve()
        assert all(isinstance(v, str) for v in variables.values())
        assert c.key.hex() not in repr(variables) and c.key.hex() not in repr(c.settings)
        assert variables["HOROVOD_GENERATION"] == "7"
        assert variables["HOROVOD_CONTROLLER"] == variables["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert variables["HOROVOD_GLOO_RENDEZVOUS_PORT"] == str(c.global_rendezv_port)
        assert variables["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "30"
        assert c.establish_rendezvous()["HOROVOD_KEY"] == c.key.hex()


def threads():
    """Of ours; the kernel may still show one of Python's that has been joined."""
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    return [name for name in names if name.startswith("hvd")]


def test_the_server_leaves_nothing_and_needs_no_main_thread():
    files = len(os.listdir("/proc/self/fd"))
    answers = []

    def serve():
        with coordinator([0]) as c:
            answers.append(c.establish_rendezvous())
            assert threads()
            c.shutdown()
            c.shutdown()

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join(20)
    assert len(answers) == 1
    assert threads() == []
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_server_that_nobody_stops_does_not_keep_the_process():
    code = ("from horovod.ray.runner import Coordinator, MiniSettings\n"
            "c = Coordinator(MiniSettings()); c.register('h', 'n', 0)\n"
            "c.establish_rendezvous()\n"
            "import sys; assert 'torch' not in sys.modules and 'ray.train' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_settings_give_a_fresh_limit_each_time():
    settings = MiniSettings(timeout_s=5)
    assert settings.start_timeout is not settings.start_timeout
    assert settings.start_timeout.remaining() > 4
    assert len(settings.key) == 32
    assert pickle.loads(pickle.dumps(settings)).key == settings.key


def test_each_job_has_a_key_of_its_own():
    """Also of settings that are used again."""
    assert MiniSettings().key != MiniSettings().key
    settings = MiniSettings()
    assert len({Coordinator(settings).key for _ in range(3)} | {settings.key}) == 4


@pytest.mark.parametrize("key", [None, "a password", b"short", secret.make_secret_key()])
def test_keys_of_any_form(key):
    class Config:
        verbose, nics, start_timeout = 1, None, timeout.Timeout(30, message="{activity}")

    Config.key = key
    c = Coordinator(Config())
    assert len(c.key) == 32 and c.key != key
    c.register("h", "n", 0)
    assert c.establish_rendezvous()["HOROVOD_KEY"] == c.key.hex()
    c.shutdown()


def test_a_coordinator_is_not_pickled():
    with pytest.raises(TypeError, match="job key"):
        pickle.dumps(Coordinator(MiniSettings()))


@pytest.mark.parametrize("mode, warnings", [("disabled", 1), ("token", 0)])
def test_a_cluster_that_is_open_to_all_is_told_of_once(mode, warnings, tmp_path):
    """Ray carries the key."""
    code = ("from horovod.ray.runner import Coordinator, MiniSettings\n"
            "for i in range(2):\n"
            "    c = Coordinator(MiniSettings()); c.register('h', 'n', 0)\n"
            "    c.serve(); c.shutdown()")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                            env={**os.environ, "RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": "x" * 32},
                            timeout=60, check=True)
    assert result.stderr.count("token authentication of Ray is off") == warnings
