"""init and shutdown, queries, waiting threads, timeline."""
import ctypes
import os
import signal
import tempfile
import threading
import time

import torch

import horovod.torch as hvd
import trace_format
from cases import case, equal, raises

HIE = hvd.HorovodInternalError


@case(started=False)
def before_and_after():
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    for query in (hvd.rank, hvd.size, hvd.local_rank, hvd.cross_size,
                  hvd.is_homogeneous, hvd.mpi_threads_supported, hvd.stop_timeline):
        raises(ValueError, query)
    assert not hvd.is_initialized()
    for call in (lambda: hvd.allreduce(torch.ones(1)), lambda: hvd.allreduce_(torch.ones(1)),
                 lambda: hvd.allgather(torch.ones(1)), lambda: hvd.broadcast_(torch.ones(1), 0),
                 lambda: hvd.alltoall(torch.ones(4)), lambda: hvd.reducescatter(torch.ones(4)),
                 hvd.barrier, hvd.join):
        raises(HIE, call)
    assert hvd.gloo_built() and not hvd.mpi_built() and isinstance(hvd.nccl_built(), int)
    library = hvd.mpi_ops._basics.MPI_LIB_CTYPES
    assert library.horovod_rank() == -1 and library.horovod_reduce_op_product() == 5
    hvd.shutdown()
    for _ in range(3):
        hvd.init()
        hvd.init()
        assert (hvd.rank(), hvd.size()) == (rank, size) and hvd.is_initialized()
        assert (hvd.local_rank(), hvd.local_size()) == (rank, size)
        assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1) and hvd.is_homogeneous()
        assert hvd.mpi_threads_supported() is False
        assert library.horovod_rank() == rank and hvd.gloo_enabled()
        assert hvd.global_process_set.ranks == list(range(size))
        count = ctypes.c_int(library.horovod_number_of_process_sets())
        assert count.value == 1
        assert hvd.allreduce_async(torch.ones(1)) == 1      # numbers begin again
        hvd.barrier()
        hvd.shutdown()
        hvd.shutdown()
        assert not hvd.is_initialized()
        raises(HIE, hvd.allreduce, torch.ones(1))


@case(2, 3, started=False)
def again_and_again():
    for i in range(40):
        hvd.init()
        equal(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))
        hvd.barrier()
        hvd.shutdown()


@case(2, 3, started=False)
def leaving_right_after_an_operation():
    """Who has done his last operation may go at once: it completes on the others, too."""
    calls = [lambda: hvd.allreduce(torch.ones(100_000), name="x"),
             lambda: hvd.broadcast(torch.ones(50_000), hvd.size() - 1, name="x"),
             lambda: hvd.allgather(torch.ones(3 + hvd.rank(), 1000), name="x"),
             hvd.barrier]
    for turn in range(12):
        hvd.init()
        calls[turn % len(calls)]()
        hvd.shutdown()


@case(2, 3, started=False)
def shutdown_with_operations_in_flight():
    hvd.init()
    if hvd.rank() == 0:
        handles = [hvd.allreduce_async(torch.ones(1000), name=f"f.{i}") for i in range(20)]
        assert len(set(handles)) == 20
    hvd.barrier()
    hvd.shutdown()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()


@case(2, 3, started=False)
def a_remote_shutdown():
    """Who waits for a rank that has left gets an error and can begin again."""
    hvd.init()
    if hvd.rank() == 0:
        hvd.barrier()
        hvd.shutdown()
    else:
        hvd.barrier()
        e = raises(HIE, hvd.allreduce, torch.ones(3), name="nobody")
        assert e.status == "SHUTDOWN", e.status
        raises(HIE, hvd.allreduce, torch.ones(3))
        assert hvd.is_initialized() and hvd.size() > 1
        hvd.shutdown()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()


@case(2, 3, started=False)
def abort_from_another_thread():
    hvd.init()
    hvd.barrier()
    if hvd.rank() == 1:
        timer = threading.Timer(0.2, hvd.abort, ["enough of this"])
        timer.start()
    e = raises(HIE, hvd.allreduce, torch.ones(3), name=f"different.{hvd.rank()}")
    assert "enough of this" in str(e), e
    hvd.shutdown()
    hvd.init()
    hvd.barrier()
    hvd.shutdown()


@case(2)
def waiting_leaves_python_free():
    """The GIL is released, and Ctrl-C works at once: nothing else ends these waits."""
    ticks, seen, sent, took = [], [], [], []
    stop = threading.Event()

    def interrupt():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def tick():
        while not stop.wait(0.01):
            ticks.append(1)
    thread = threading.Thread(target=tick)
    thread.start()
    if hvd.rank() == 0:
        for wait in (lambda: hvd.allreduce_(torch.ones(3), name="late"),
                     lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(3), name="later")),
                     hvd.barrier):
            seen.append(len(ticks))
            timer = threading.Timer(0.3, interrupt)
            timer.start()
            raises(KeyboardInterrupt, wait)
            took.append(time.monotonic() - sent[-1])
            timer.join()
        seen.append(len(ticks))
        assert all(a < b for a, b in zip(seen, seen[1:])), seen
        assert min(took) < 0.5, took        # of three, on a machine that does much else
    stop.set()
    thread.join()
    hvd.allgather_object(0, name="come")
    if hvd.rank() == 1:
        hvd.allreduce_(torch.ones(3), name="late")
        hvd.allreduce_(torch.ones(3), name="later")
        hvd.barrier()
    equal(hvd.allreduce(torch.ones(3), op=hvd.Sum, name="fresh"), torch.full((3,), 2.0))


def busy():
    """Something of every kind, for a timeline."""
    for _ in range(3):
        hvd.allreduce(torch.ones(3), name='test_allreduce "quoted"\\ \n\u00fc')
    handles = [hvd.allreduce_async_(torch.ones(9 << i), name=f"fused/{i}") for i in range(5)]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.grouped_allreduce([torch.ones(2), torch.ones(3, 2)], name="group")
    hvd.allgather(torch.ones(2 + hvd.rank(), 3), name="gather")
    hvd.broadcast(torch.ones(2), 1, name="spread")
    hvd.alltoall(torch.ones(4), name="swap")
    hvd.reducescatter(torch.ones(4, 2), name="share")
    raises(hvd.HorovodInternalError, hvd.allreduce, torch.ones(1 + hvd.rank()), name="wrong")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                         model.named_parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    hvd.barrier()
    hvd.join()


def check_timeline(text, mark):
    tracks = trace_format.tracks(text)
    assert ("CYCLE_START" in text) == mark
    names = {name: [s[:2] for s in track.slices] for name, track in tracks.items()}
    quoted = names['allreduce.test_allreduce "quoted"\\ \n\u00fc']
    assert quoted.count(("NEGOTIATE_ALLREDUCE", 0)) == quoted.count(("ALLREDUCE", 0)) == 3
    assert ("GLOO_ALLREDUCE", 1) in quoted
    for kind, name in (("ALLGATHER", "allgather.gather"), ("ALLTOALL", "alltoall.swap"),
                       ("BROADCAST", "broadcast.spread"),
                       ("REDUCESCATTER", "reducescatter.share")):
        assert ("NEGOTIATE_" + kind, 0) in names[name] and (kind, 0) in names[name], names[name]
    gathered = [s[3] for s in tracks["allgather.gather"].slices if s[0] == "ALLGATHER"]
    assert gathered == [{"dtype": "float32", "shape": "[5, 3]"}]
    assert ("ALLREDUCE", 0) not in names["allreduce.wrong"]
    assert any(n.startswith("allreduce.0.weight..1.bias.optimizer.") for n in names), names


@case(2, env={"HOROVOD_TIMELINE": "DYNAMIC"})
def timeline():
    with tempfile.TemporaryDirectory() as directory:
        for mark in (True, False):
            path = os.path.join(directory, f"timeline.{mark}.json")
            hvd.start_timeline(path, mark_cycles=mark)
            busy()
            hvd.stop_timeline()
            hvd.stop_timeline()
            if hvd.rank() == 0:
                with open(path, encoding="utf-8") as file:
                    check_timeline(file.read(), mark)
            hvd.barrier()


@case(1)
def timeline_must_be_asked_for():
    raises(ValueError, hvd.start_timeline, "/nowhere")


@case(1, 2)
def statistics():
    for _ in range(3):
        hvd.allreduce(torch.ones(100), name="counted")
    stats = hvd.stats()
    assert stats["size"] == hvd.size() and stats["operations"]["allreduce"]["count"] >= 3
