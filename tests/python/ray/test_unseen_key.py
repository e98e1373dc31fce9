"""The job key stands nowhere: not in Ray's state, its logs, its dashboard, nor in what the
kernel shows of a process."""
import base64
import contextlib
import json
import pathlib
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("ray")

import ray  # noqa: E402
import ray.experimental.internal_kv as kv  # noqa: E402
import ray_cases as cases  # noqa: E402
import ray_support  # noqa: E402
from ray.util import state  # noqa: E402

from horovod.ray import RayExecutor  # noqa: E402

LISTINGS = ["actors", "tasks", "objects", "workers", "placement_groups", "jobs", "nodes",
            "runtime_envs", "cluster_events"]
PAGES = ["api/v0/actors?detail=1", "api/v0/tasks?detail=1", "api/jobs/", "nodes?view=summary",
         "api/cluster_status", "logical/actors", "api/v0/logs?node_id="]


@pytest.fixture(scope="module")
def job():
    """Two workers that have met, and the forms the key could have anywhere."""
    ray_support.use_ray("shared")
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=2)
    executor.start(executable_cls=cases.Doubler, executable_args=[1],
                   extra_env_vars={"HOROVOD_LOG_LEVEL": "trace"})
    assert executor.run(cases.sum_of_ranks) == [1, 1]
    with pytest.raises(ZeroDivisionError):
        executor.run(cases.wait_for, args=[1, "raise"])
    yield executor
    executor.shutdown()


def forms(executor):
    key = executor.adapter.coordinator.key
    texts = [key.hex(), key.hex().upper(), base64.b64encode(key).decode(),
             base64.urlsafe_b64encode(key).decode(), repr(key)]
    return [key, *(text.encode() for text in texts)]


def shows(content, executor):
    return any(form in content for form in forms(executor))


def test_the_scan_finds_a_key(job):
    assert shows(b"key: " + job.adapter.coordinator.key.hex().encode(), job)
    assert shows(repr({"key": job.adapter.coordinator.key}).encode(), job)


@pytest.mark.skipif(not ray_support.has_dashboard(), reason="needs ray[default]")
def test_state_listings(job):
    address = ray.get_runtime_context().gcs_address
    for name in LISTINGS:
        listing = getattr(state, "list_" + name)
        options = {} if name == "cluster_events" else {"detail": True, "limit": 10000}
        if name == "objects":           # one that is freed meanwhile counts as missing
            options["raise_on_missing_output"] = False
        answer = listing(address=address, timeout=30, **options)
        assert name in ("runtime_envs", "cluster_events") or answer, name
        assert not shows(repr(answer).encode(), job), name
    summary = repr([state.summarize_tasks(address=address), state.summarize_actors(
        address=address)])
    assert "BaseHorovodWorker" in summary
    assert not shows(summary.encode(), job)


def answers(page):
    """What the dashboard says, up to its first answer that is no error of its own.

    It says 500 while a node's agent is not registered or does not answer in time, and when a
    table changes under a handler (ray.dashboard: DataSourceUnavailable, routes.py); the body
    is then a message or a traceback, which a stranger would see as well.
    """
    url = ray._private.worker.get_dashboard_url()
    token = (ray_support.folder() / "home/.ray/auth_token").read_text().strip()
    request = urllib.request.Request(f"http://{url}/{page}",
                                     headers={"Authorization": f"Bearer {token}"})
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                yield answer.read()
                return
        except urllib.error.HTTPError as error:
            content = error.read()
            yield content
            if error.code != 500 or time.monotonic() > deadline:
                raise AssertionError(f"{page}: {error.code}: {content!r}") from None
        time.sleep(0.5)                 # Ray has nothing that could be waited for


@pytest.mark.skipif(not ray_support.has_dashboard(), reason="needs ray[default]")
def test_pages_of_the_dashboard(job):
    seen = 0
    for page in PAGES:
        if page.endswith("node_id="):
            page += ray.get_runtime_context().get_node_id()
        for content in answers(page):
            assert not shows(content, job), page
        json.loads(content)
        seen += b"BaseHorovodWorker" in content
    assert seen >= 2


def test_tables_and_store_of_the_cluster(job):
    tables = repr([ray._private.state.actors(), ray._private.state.state.job_table(),
                   ray.util.placement_group_table(), ray.nodes()])
    assert "BaseHorovodWorker" in tables
    assert not shows(tables.encode(), job)
    count = 0
    for namespace in (None, b"fun", b"session", b"job", b"workflow", b"dashboard"):
        for name in kv._internal_kv_list(b"", namespace=namespace):
            value = kv._internal_kv_get(name, namespace=namespace) or b""
            assert not shows(bytes(name) + value, job), name
            count += 1
    assert count > 5


def test_logs_and_flight_recorders(job):
    size = 0
    for path in ray_support.folder().rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            size += len(content)
            assert not shows(content, job), path
    assert size > 10000


def test_an_elastic_job(job, tmp_path):
    """While it runs: state, logs, and what the kernel shows."""
    seen = []

    def look(_):
        class Elastic:
            class adapter:
                class coordinator:
                    key = executor.adapter._job._key
        for search in (test_tables_and_store_of_the_cluster, test_logs_and_flight_recorders):
            search(Elastic)
        for pid in [*ray_support.marked_processes(), "self"]:
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    assert not shows(pathlib.Path(f"/proc/{pid}/{name}").read_bytes(), Elastic)
        if ray_support.has_dashboard():
            test_state_listings(Elastic)
        seen.append(True)
        (tmp_path / "seen").touch()
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
    executor.start(extra_env_vars={"HOROVOD_LOG_LEVEL": "trace"})
    environments = executor.run(log_and_wait, args=[str(tmp_path / "seen")], callbacks=[look])
    assert seen == [True] and "HOROVOD_KEY" not in repr(environments)
    executor.shutdown()


def log_and_wait(path):
    """Its environment, when the driver has looked."""
    import os
    import time

    from horovod.ray import ray_logger
    cases.hvd.init()
    if cases.hvd.rank() == 0:
        ray_logger.log({"rank": 0})
    end = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.05)
    return dict(os.environ)


def test_processes(job):
    """Arguments and environment of the workers, of Ray, and of this process."""
    pids = [*ray_support.marked_processes(), "self"]
    assert len(pids) > 5
    for pid in pids:
        for name in ("cmdline", "environ"):
            try:
                content = pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                continue                # ended meanwhile
            assert not shows(content, job), (pid, name)
    environments = job.execute(lambda _: __import__("os").environ.copy())
    assert not shows(repr(environments).encode(), job)
