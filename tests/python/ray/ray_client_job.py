"""A driver that knows its cluster through Ray Client only; a program of test_client.py.

    python ray_client_job.py FOLDER

The server of Ray Client runs in this process, too, beside a cluster of 3 CPUs.
"""
import socket
import sys
import threading

import ray
import ray.util.client.server.server as client_server
from ray._private.client_mode_hook import disable_client_hook

import ray_cases as cases
from elastic_cases import Journal, training
from horovod.ray import ElasticRayExecutor, RayExecutor
from horovod.runner.common.util.timeout import TimeoutException


def start_cluster(job_config=None, **kwargs):
    with disable_client_hook():
        if not ray.is_initialized():
            return ray.init(address="local", num_cpus=3, include_dashboard=False,
                            object_store_memory=100 << 20, _temp_dir=sys.argv[1])


def check():
    values = []
    executor = RayExecutor(RayExecutor.create_settings(), num_workers=3)
    executor.start()                    # the adapter holds none of the three CPUs
    try:
        assert executor.execute(lambda _: cases.place()["local_rank"]) == [0, 1, 2]
        refs = executor.run_remote(lambda _: cases.place()["local_rank"], args=[None])
        assert ray.get(refs) == [0, 1, 2]
        assert executor.run(cases.sum_of_ranks, args=[2]) == [6] * 3
        assert executor.execute_single(lambda _: cases.place) is not None
        assert executor.run(cases.log_some, args=[2], callbacks=[values.append]) == [0, 1, 2]
        assert len(values) == 6
        try:
            executor.run(cases.wait_for, args=[1, "raise"])
        except ZeroDivisionError as error:
            assert "division by zero on rank 1" in str(error), error
            assert "rank 1 on node" in str(error), error
        else:
            raise AssertionError("no exception came through")
        assert executor.run(cases.sum_of_ranks) == [3] * 3

        # A call that hangs is ended from another thread.
        failures = []

        def hang():
            try:
                executor.run(cases.wait_for, args=[1, "sleep"])
            except Exception as error:
                failures.append(error)
        thread = threading.Thread(target=hang)
        thread.start()
        thread.join(2)
        assert thread.is_alive()
    finally:
        executor.shutdown()
    thread.join(30)
    assert failures and not thread.is_alive()
    executor.shutdown()
    assert not cases.threads(), "the rendezvous runs in the cluster"


def check_elastic(folder):
    """The same classes; the driver of the job runs in the cluster."""
    journal = Journal(f"{folder}/journal")
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=2, max_workers=2)
    executor.start()
    try:
        results = executor.run(training, args=[journal.path, 6, {3: ("kill", 1), 5: ("size", 2)}])
    finally:
        executor.shutdown()
    assert [size for _, size, _ in results] == [2, 2], results
    assert journal.check(6)[:3] == [2] * 3
    executor = RayExecutor(RayExecutor.create_settings(), min_workers=9, elastic_timeout=0.2)
    try:
        executor.start()
    except TimeoutException as error:
        assert "of min_workers=9 places" in str(error), error
    else:
        raise AssertionError("nine workers on three CPUs")
    try:
        ElasticRayExecutor(ElasticRayExecutor.create_settings()).start()
    except RuntimeError as error:
        assert "does not work through Ray Client" in str(error), error
    else:
        raise AssertionError("ElasticRayExecutor through Ray Client")


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = client_server.serve("127.0.0.1", port, ray_connect_handler=start_cluster)
ray.util.client.ray._inside_client_test = True
ray.util.client.ray.connect(f"127.0.0.1:{port}")
try:
    check()
    check_elastic(sys.argv[1])
    print("client job done")
finally:
    ray.util.client.ray.disconnect()
    server.stop(0)
    with disable_client_hook():
        ray.shutdown()
