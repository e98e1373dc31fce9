"""Elastic jobs on one Ray node: both executors, places, deaths, ends."""
import functools
import os
import re
import signal
import threading
import time

import pytest

pytest.importorskip("ray")

import elastic_cases as cases  # noqa: E402
import ray  # noqa: E402
import ray_cases  # noqa: E402
from elastic_cases import Journal, training  # noqa: E402

from horovod.ray import ElasticRayExecutor, RayExecutor, ray_logger  # noqa: E402
from horovod.runner.common.util.timeout import TimeoutException  # noqa: E402
from horovod.runner.elastic import driver  # noqa: E402
from horovod.runner.elastic.discovery import HostDiscovery  # noqa: E402

SOON_S = 30.0                   # "within seconds" on a machine that does much else


@pytest.fixture(autouse=True)
def nothing_left(shared_ray, monkeypatch):
    """Neither in Ray nor in this process, after each test."""
    monkeypatch.setattr(driver, "DISCOVER_HOSTS_FREQUENCY_SECS", 0.1)
    yield
    end = time.monotonic() + SOON_S
    while ray.available_resources().get("CPU") != 8.0 or groups() or ray_cases.threads():
        assert time.monotonic() < end, (ray.available_resources(), groups(),
                                        ray_cases.threads())
        time.sleep(0.05)
    assert not [t for t in threading.enumerate() if t.name.startswith("horovod-ray")]


def groups():
    return [g for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED"]


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal")


class Plan(HostDiscovery):
    """Hosts by how far the training is: the step at which it waits."""

    def __init__(self, journal, plan):
        self.journal, self.plan = journal, plan

    def find_available_hosts_and_slots(self):
        step = max((e["step"] for e in self.journal.read("wait")), default=-1)
        return [hosts for first, hosts in sorted(self.plan.items()) if first <= step][-1]


def executor(discovery=None, timeout_s=60, **kwargs):
    settings = RayExecutor.create_settings(timeout_s=timeout_s)
    settings.discovery = discovery
    kwargs.setdefault("min_workers", 1)
    return RayExecutor(settings, override_discovery=discovery is None, **kwargs)


def run(ex, fn, *args, **kwargs):
    ex.start()
    try:
        return ex.run(fn, args=args, **kwargs)
    finally:
        ex.shutdown()


def resets(output):
    return re.findall(r"^horovod: .* trains? on after .*$", output, re.M)


# -- calls ------------------------------------------------------------------------------------


def test_values_callbacks_and_objects(journal):
    """One executor, used again and again; each call has workers of its own."""
    ex = executor(min_workers=2, max_workers=2)
    with pytest.raises(RuntimeError, match="not been started"):
        ex.run(print)
    ex.start(executable_cls=cases.Counter, executable_args=[40],
             extra_env_vars={"HELLO": "you"})
    assert len(groups()) == 2                   # kept for the call
    assert ex.execute(lambda counter: counter.value) == [42, 42]
    assert groups() == []
    logged = []
    assert ex.run(ray_cases.log_some, args=[2], callbacks=[logged.append]) == [0, 1]
    assert sorted((v["rank"], v["i"]) for v in logged) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for call in (ex.run_remote, ex.execute_single):
        with pytest.raises(NotImplementedError, match="not supported in elastic mode"):
            call(print)
    names = ["HELLO", "HOROVOD_ELASTIC", "HOROVOD_CONTROLLER", "HOROVOD_KEY", "HOROVOD_HOSTNAME"]
    address = ray.util.get_node_ip_address()
    assert ex.run(ray_cases.variables, args=names) == [
        dict(zip(names, ["you", "1", "gloo", None, address]))] * 2
    ex.shutdown()


def test_the_older_executor(journal, capfd):
    """As its documents have it; all that the node has, in slots of 4 CPUs."""
    settings = ElasticRayExecutor.create_settings(min_num_proc=1, timeout_s=60)
    ex = ElasticRayExecutor(settings, cpus_per_slot=4, env_vars={"HELLO": "you"})
    assert ex.driver.get_slot_info("nobody", 0).hostname == ""
    ex.start()
    seen = []

    def look():
        ray_logger.log({"rank": cases.hvd.rank()})
    results = ex.run(functools.partial(training, journal.path, 3, {1: ("call", look)}),
                     callbacks=[lambda value: seen.append(slots(ex))])
    assert [(rank, size) for rank, size, _ in results] == [(0, 2), (1, 2)]
    assert journal.check(3) == [2, 2, 2]
    assert sorted(seen[0]) == [0, 1]
    ex.shutdown()
    ex.shutdown()


def slots(ex):
    """Ranks of the slots, as a discovery of the user may ask for them."""
    address = ray.util.get_node_ip_address()
    infos = [ex.driver.get_slot_info(address, slot) for slot in range(2)]
    assert all(ex.driver.get_worker_client(info) for info in infos)
    return [info.rank for info in infos]


def test_output_has_the_rank(capfd):
    run(executor(min_workers=2, max_workers=2), cases.say_hello)
    end, output = time.monotonic() + SOON_S, ""
    while not all(line in output for line in ("[0] hello from zero", "[1] hello from one")):
        assert time.monotonic() < end, output
        output += "".join(capfd.readouterr())
        time.sleep(0.05)
    assert re.search(rf"\({ray.util.get_node_ip_address()}\[1\] pid=\d+\).* \[1\] hello", output)


def test_gpus_are_those_that_ray_gives():
    results = run(executor(min_workers=3, max_workers=3, use_gpu=True), cases.devices)
    assert sorted(local for local, _, _ in results) == [0, 1, 2]
    assert len({own[0] for _, _, own in results}) == 3
    for local, visible, own in results:
        assert visible[local] == own[0] and len(set(visible)) == 3


# -- workers that come and go -----------------------------------------------------------------


def test_a_killed_worker_is_replaced(journal, capfd):
    """In an allreduce; the survivors go on at once, and a new one joins them."""
    ex = executor(min_workers=2, max_workers=3)
    results = run(ex, training, journal.path, 12, {4: ("kill", 1), 8: ("size", 3)})
    assert [(rank, size) for rank, size, _ in results] == [(0, 3), (1, 3), (2, 3)]
    sizes = journal.check(12)
    assert sizes[:4] == [3] * 4 and sizes[4] == 2 and sizes[8:] == [3] * 4
    assert len({e["pid"] for e in journal.read("started")}) == 4
    lines = resets(capfd.readouterr().err)
    assert len(lines) == 2 and "[1] ended" in lines[0] and "2 workers train on" in lines[0]
    assert "[1] came" in lines[1] and "3 workers train on" in lines[1]


def test_hosts_of_a_discovery(journal):
    """The first hosts all go at the end: the state is handed over."""
    plan = {-1: {"host-1": 2}, 5: {"host-1": 2, "host-2": 1, "host-3": 1}, 10: {"host-2": 1}}
    results = run(executor(Plan(journal, plan), max_workers=4), training, journal.path, 15,
                  {5: ("size", 4), 10: ("size", 1)})
    assert [size for _, size, _ in results] == [1] and results[0][2] == 15.0
    assert journal.check(15) == [2] * 5 + [4] * 5 + [1] * 5
    assert len(journal.read("started")) == 4 and len(journal.read("finished")) == 1


def test_what_others_hold_is_not_taken(journal, tmp_path):
    """All but two CPUs are somebody else's, until he gives them back."""
    holder = ray.remote(num_cpus=6)(Holder).remote(str(tmp_path / "free"))
    held = holder.hold.remote()
    while ray.available_resources().get("CPU", 0) > 2:
        time.sleep(0.05)
    script = {3: ("file", str(tmp_path / "free")), 4: ("size", 4)}
    thread = threading.Thread(target=lambda: (journal.wait("wait"),
                                              (tmp_path / "free").touch()))
    thread.start()
    results = run(executor(cpus_per_worker=2, min_workers=1), training, journal.path, 6, script)
    thread.join()
    assert [size for _, size, _ in results] == [4] * 4
    assert journal.check(6)[:3] == [1] * 3
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(held)


def test_ray_takes_an_actor_and_a_place(journal, capfd):
    """Somebody ends an actor and asks Ray to restart it, and removes the placement group of the
    other: a number is good for one process, so each is a loss and a new worker."""
    ex = executor(min_workers=1, max_workers=2)
    ex.start()
    address = ray.util.get_node_ip_address()

    def take():
        journal.wait("wait")
        info = ex.adapter.get_slot_info(address, 1)
        ray.kill(ex.adapter.get_worker_client(info), no_restart=False)
        while len({e["pid"] for e in journal.read("enter")}) < 3:
            time.sleep(0.02)
        mine = ex.adapter._job._places._slots[ray.get_runtime_context().get_node_id()][1]
        ray.util.remove_placement_group(mine.group)
    thread = threading.Thread(target=take)
    thread.start()
    try:
        results = ex.run(training, args=[journal.path, 6, {3: ("started", 4)}])
    finally:
        thread.join()
        ex.shutdown()
    assert [size for _, size, _ in results] == [2, 2]
    assert len({e["pid"] for e in journal.read("started")}) == 4
    assert len(resets(capfd.readouterr().err)) == 4


class Holder:
    def __init__(self, path):
        self.path = path

    def hold(self):
        while not os.path.exists(self.path):
            time.sleep(0.05)
        ray.actor.exit_actor()


# -- ends -------------------------------------------------------------------------------------


def test_a_function_that_fails_on_one_rank(journal, capfd):
    """Without restarts its host is left out at once."""
    discovery = Plan(journal, {-1: {"host-1": 1, "host-2": 1}})
    ex = executor(discovery, max_workers=2)
    ex.settings.restarts_per_slot = 0
    results = run(ex, training, journal.path, 8, {4: ("raise", "host-2")})
    assert [size for _, size, _ in results] == [1]
    error = capfd.readouterr().err
    assert "host-2[0] ended: ZeroDivisionError" in error
    assert "host host-2 is not used any more" in error


def test_a_function_that_fails_everywhere():
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"\[\d\] ended: LookupError: there is no data") as e:
        run(executor(min_workers=2, max_workers=2), cases.fail_before_init)
    assert isinstance(e.value.__cause__, LookupError)
    assert time.monotonic() - start < SOON_S


def test_too_many_resets(journal):
    with pytest.raises(RuntimeError, match="number of resets during elastic job exceeded limit"):
        run(executor(min_workers=1, max_workers=2, reset_limit=0), training, journal.path, 8,
            {4: ("kill", 1)})


def test_a_host_that_ray_does_not_have(journal, caplog):
    discovery = Plan(journal, {-1: {"host-1": 1, "nowhere": 1}})
    assert [size for _, size, _ in run(executor(discovery, max_workers=2), training,
                                       journal.path, 3)] == [1]
    assert "no node has the resource node:nowhere" in caplog.text


@pytest.mark.long
def test_an_actor_that_never_comes_up(journal, capfd):
    """The discovery says that there is room, and there is not."""
    discovery = Plan(journal, {-1: {"host-1": 1, "host-2": 1}})
    ex = executor(discovery, max_workers=2, cpus_per_worker=5)
    ex.settings.placement_group_timeout_s = 15
    assert [size for _, size, _ in run(ex, training, journal.path, 3)] == [1]
    assert re.search(r"host-2\[0\]: the actor was not up within 15 s .*'num_cpus': 5.*"
                     r"node:host-1", capfd.readouterr().err)


def test_no_room():
    ex = executor(min_workers=9, elastic_timeout=0.5)
    with pytest.raises(TimeoutException, match=r"only 8 of min_workers=9 places.*'CPU': 1.0.* "
                                               r"of \{.*'CPU': 8.0"):
        ex.start()
    assert groups() == []
    with pytest.raises(RuntimeError, match="could not be started"):
        ex.run(print)
    with pytest.raises(TimeoutException, match="the discovery found {.host-1.: 1}"):
        executor(Plan(Journal("/none"), {-1: {"host-1": 1}}), min_workers=2,
                 elastic_timeout=0.2).start()


class GoneWithItsWorker(HostDiscovery):
    def __init__(self, journal):
        self.journal = journal

    def find_available_hosts_and_slots(self):
        return {"host-1": 1} if self.journal.read("kill") else {"host-1": 1, "host-2": 1}


def test_too_few_for_too_long(journal):
    ex = executor(GoneWithItsWorker(journal), min_workers=2, max_workers=2, elastic_timeout=3)
    with pytest.raises(RuntimeError, match=r"only 1 of 2 slots .*lost: host-2\[0\] .*"
                                           r"the discovery found {'host-1': 1}; Ray has node:"):
        run(ex, training, journal.path, 8, {4: ("kill", "host-2")})


def test_two_at_once(tmp_path):
    journals = [Journal(tmp_path / name) for name in "ab"]
    results = {}

    def job(journal, min_workers):
        results[min_workers] = run(executor(min_workers=min_workers, max_workers=min_workers),
                                   training, journal.path, 20)
    threads = [threading.Thread(target=job, args=[j, n]) for n, j in enumerate(journals, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for n, journal in enumerate(journals, 2):
        assert [size for _, size, _ in results[n]] == [n] * n
        assert journal.check(20) == [n] * 20


def test_an_interrupted_call(journal):
    ex = executor(min_workers=2, max_workers=2)
    ex.start()
    thread = threading.Thread(target=lambda: (journal.wait("step", 6),
                                              os.kill(os.getpid(), signal.SIGINT)))
    thread.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ex.run(training, args=[journal.path, 1 << 30], kwargs={"pause": 0.01})
    thread.join()
    assert time.monotonic() - start < SOON_S
    with pytest.raises(RuntimeError, match="one at a time"):
        run_inside(ex)
    ex.shutdown()


def test_shutdown_from_another_thread(journal):
    ex = executor(min_workers=1, max_workers=1)
    ex.start()
    thread = threading.Thread(target=lambda: (journal.wait("step", 3), ex.shutdown()))
    thread.start()
    with pytest.raises(RuntimeError, match="the executor is being shut down"):
        ex.run(training, args=[journal.path, 1 << 30], kwargs={"pause": 0.01})
    thread.join()


def run_inside(ex):
    """A second call while the first one runs."""
    caught = []

    def again(_):
        try:
            ex.run(print)
        except RuntimeError as error:
            caught.append(error)
    ex.run(ray_cases.log_some, args=[1], callbacks=[again])
    raise caught[0]
