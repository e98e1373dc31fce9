"""What goes wrong is said on every rank that took part, and the job goes on."""
import os
import time
import warnings

import torch

import horovod.torch as hvd
from cases import case, equal, raises

HIE = hvd.HorovodInternalError


def goes_on():
    equal(hvd.allreduce(torch.ones(2), op=hvd.Sum, name="goes.on"),
          torch.full((2,), float(hvd.size())))


def mismatch(call, *words):
    """Every rank gets the error, with these words in it; the name is free again."""
    e = raises(HIE, call)
    assert isinstance(e, RuntimeError) and e.status == "MISMATCH" and e.scope == "OP", e.status
    for word in words:
        assert word in str(e), f"{word!r} is not in {e}"
    goes_on()


@case(2, 3)
def ranks_disagree():
    r = hvd.rank()
    for _ in range(2):              # the second time with the same names
        mismatch(lambda: hvd.allreduce(torch.ones(17 + (r == 1), 3), name="shape"),
                 "[17, 3]", "[18, 3]")
        mismatch(lambda: hvd.allreduce(torch.ones(17, 1311) if r == 1
                                       else torch.ones(17, 23, 57), name="dims"))
        mismatch(lambda: hvd.allreduce(torch.ones(3).to(torch.int32 if r == 1
                                                        else torch.float32), name="dtype"),
                 "int32", "float32")
        mismatch(lambda: hvd.allreduce(torch.ones(3), op=hvd.Max if r == 1 else hvd.Sum,
                                       name="op"))
        mismatch(lambda: hvd.allreduce(torch.ones(3), prescale_factor=1.0 + r, name="scale"))
        mismatch(lambda: hvd.broadcast(torch.ones(3), root_rank=min(r, 1), name="root"))
        mismatch(lambda: hvd.allgather(torch.ones(3, 2 + (r == 1)), name="rows"))
        mismatch(lambda: hvd.allgather(torch.ones(3, 2).to(torch.int32 if r == 1
                                                           else torch.float32), name="gd"))
        mismatch(lambda: hvd.reducescatter(torch.ones(6, 2 + (r == 1)), name="rs"))
        mismatch(lambda: hvd.alltoall(torch.ones(6, 2 + (r == 1)), name="a2a"))


@case(2, 3)
def models_differ():
    """The first parameter that differs is named, with both shapes, also where only one rank
    has it."""
    r = hvd.rank()

    def model(width, *more):
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, width), *more)

    def step(net):
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1),
                                             named_parameters=net.named_parameters())
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    wider = model(5 if r == 1 else 2)
    mismatch(lambda: hvd.broadcast_parameters(wider.state_dict(), root_rank=0),
             "rank 0 has 1.bias [2] float32, rank 1 has 1.bias [5] float32")
    mismatch(lambda: step(wider), "DistributedOptimizer",
             "rank 0 has 1.weight [2, 4] float32, rank 1 has 1.weight [5, 4] float32")
    longer = model(2, *[torch.nn.Linear(2, 2)] * (r == 1))
    mismatch(lambda: hvd.broadcast_parameters(longer.state_dict(), root_rank=0),
             "rank 0 has nothing (it has 4), rank 1 has 2.bias [2] float32")
    hvd.broadcast_parameters(model(2).state_dict(), root_rank=0)


@case(2)
def factors_that_are_no_numbers():
    """Are the same on all ranks, or not; a rank does not differ from itself."""
    got = hvd.allreduce(torch.ones(2), prescale_factor=float("nan"), name="nan")
    assert bool(got.isnan().all())
    e = raises(HIE, hvd.allreduce, torch.ones(2), name="some nan",
               prescale_factor=float("nan") if hvd.rank() == 1 else 1.0)
    assert "rank 0 has prescale 1 " in str(e) and "rank 1 has prescale nan" in str(e), e
    goes_on()


@case(2, 3)
def objects_of_different_types():
    """Without a name they meet all the same."""
    assert hvd.broadcast_object({"a": 1} if hvd.rank() == 0 else None) == {"a": 1}
    assert hvd.allgather_object([0] if hvd.rank() == 0 else hvd.rank()) == \
        [[0], *range(1, hvd.size())]


@case(2)
def a_forked_child_is_no_rank():
    """And is not told to call init, which could not work."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = [str(raises((HIE, ValueError), call)) for call in (
            hvd.rank, lambda: hvd.allgather_async(torch.ones(1)),
            lambda: hvd.allreduce_(torch.ones(1)))]
        os.write(writing, "\n".join(said).encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as file:
        said = file.read().splitlines()
    os.waitpid(child, 0)
    assert len(said) == 3 and all("fork" in text and "no rank of the job" in text and
                                  "init()" not in text for text in said), said


@case(2, 3)
def ranks_disagree_within_a_group():
    """The error of one member is that of the group; nothing is left behind."""
    r = hvd.rank()
    ts = [torch.ones(4), torch.ones(5 + (r == 1)), torch.ones(6)]
    mismatch(lambda: hvd.grouped_allreduce(ts, name="group"))
    equal(hvd.grouped_allreduce([torch.ones(4)] * 3, name="group", op=hvd.Sum)[1],
          torch.full((4,), float(hvd.size())))


@case(2, 3)
def one_name_for_two_kinds_is_an_error_on_all_ranks():
    """Each rank sleeps in its call, so the others' calls cannot come: no stall of a minute."""
    ones = torch.ones(2)
    call = hvd.allreduce if hvd.rank() == 0 else hvd.allgather
    text = str(raises(HIE, call, ones, name="mixed"))
    for words in ("the name mixed is used for different kinds of operation:",
                  " allreduce by ranks 0", " allgather by ranks 1"):
        assert words in text, text
    goes_on()
    equal(hvd.allreduce(ones, name="mixed"), ones)
    assert hvd.allgather(ones, name="mixed").shape[0] == 2 * hvd.size()


@case(2)
def two_kinds_of_one_name_may_come_late_and_in_another_order():
    """Nobody is stuck: a rank that computes comes to the other kind afterwards."""
    if hvd.rank() == 0:
        hvd.allreduce(torch.ones(2), name="order")
        hvd.allgather(torch.ones(2), name="order")
    else:
        handle = hvd.allgather_async(torch.ones(2), name="order")
        time.sleep(3.5)                 # the pace of a computation
        hvd.allreduce(torch.ones(2), name="order")
        hvd.synchronize(handle)


@case(2, 3)
def different_operations_under_one_name():
    """The wire name holds the kind, so these are two names; a bare one is checked."""
    handle = hvd.allreduce_async(torch.ones(2), name="same")
    gathered = hvd.allgather(torch.ones(2), name="same")
    assert gathered.shape[0] == 2 * hvd.size()
    hvd.synchronize(handle)


@case(1, 2)
def a_tensor_in_flight_keeps_its_memory():
    """resize_ would free it under the engine; another storage is seen."""
    def grouped(t, **kwargs):
        return hvd.grouped_allreduce_async_([t], **kwargs)

    def gathered(t, name, op):
        return hvd.allgather_async(t, name=name)

    for start in (hvd.allreduce_async_, grouped, hvd.allreduce_async, gathered):
        for dtype in (torch.float32, torch.bfloat16):
            t = torch.ones(1000, dtype=dtype)
            handle = start(t, name="held", op=hvd.Sum)
            raises(RuntimeError, t.untyped_storage().resize_, 0)
            assert "not resizable" in str(raises(RuntimeError, t.resize_, 200000))
            if start in (hvd.allreduce_async_, grouped):
                assert "from [1000] to [200000]" in str(
                    raises(ValueError, hvd.synchronize, handle))
                equal(t, torch.full((1000,), float(hvd.size()), dtype=dtype))
            else:
                hvd.synchronize(handle)
    for start in (hvd.allreduce_async_, grouped):
        t = torch.ones(1000)
        handle = start(t, name="elsewhere", op=hvd.Sum)
        t.data = torch.zeros(1000)
        hvd.synchronize(handle)
        equal(t, torch.full((1000,), float(hvd.size())))
    goes_on()


@case()
def a_name_in_flight_twice():
    hvd.barrier()
    if hvd.rank() == 0:
        first = hvd.allreduce_async(torch.ones(3), name="twice")
        if not hvd.poll(first):
            raises(ValueError, hvd.allreduce_async, torch.ones(3), name="twice")
    hvd.barrier()
    if hvd.rank() != 0:
        hvd.allreduce_async(torch.ones(3), name="twice")
    hvd.barrier()                   # and nobody synchronises


@case()
def unsupported_tensors():
    for bad in (torch.ones(2, dtype=torch.complex64),
                torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)):
        for call in (lambda: hvd.allreduce(bad, name="bad"), lambda: hvd.allgather(bad),
                     lambda: hvd.broadcast_(bad, 0, name="bad"),
                     lambda: hvd.grouped_allreduce_([torch.ones(1), bad], name="bad")):
            e = raises(ValueError, call)
            assert "omplex" in str(e) or "uantized" in str(e) or "quint8" in str(e), e
        equal(hvd.allreduce(torch.ones(1), name="bad"), torch.ones(1))
    raises(ValueError, hvd.allreduce, torch.eye(3).to_sparse())
    raises(ValueError, hvd.reducescatter, torch.tensor(1.0))
    raises(ValueError, hvd.grouped_reducescatter, [torch.ones(4), torch.tensor(1.0)])
    raises(ValueError, hvd.allgather, torch.tensor(1.0))
    raises(ValueError, hvd.grouped_allreduce, [])
    raises(HIE, hvd.reducescatter, torch.ones(4), op=hvd.Adasum)
    raises(HIE, hvd.reducescatter, torch.ones(4), op=hvd.Max)
    goes_on()


@case(2, 3)
def an_argument_error_on_one_rank():
    """The others are told and do not wait for ever; only the culprit gets a ValueError."""
    r = hvd.rank()
    for name in ("named", None):
        bad = torch.ones(2, dtype=torch.complex64 if r == 0 else torch.float32)
        e = raises(ValueError if r == 0 else HIE, hvd.allreduce, bad, name=name)
        assert r == 0 or "omplex" in str(e), e
        equal(hvd.allreduce(torch.ones(2), name=name), torch.ones(2))
        splits = torch.ones(hvd.size(), dtype=torch.float32 if r == 0 else torch.int32)
        raises(ValueError if r == 0 else HIE, hvd.alltoall, torch.ones(hvd.size()), splits,
               name=name)
        raises(ValueError if r == 0 else HIE, hvd.reducescatter,
               torch.tensor(1.0) if r == 0 else torch.ones(4), name=name)
        raises(ValueError if r == 0 else HIE, hvd.allgather,
               torch.tensor(1.0) if r == 0 else torch.ones(4), name=name)
    goes_on()


@case()
def bad_splits():
    n = hvd.size()
    x = torch.ones(n * 2)
    raises(ValueError, hvd.alltoall, x, torch.ones(n))                              # float
    raises(ValueError, hvd.alltoall, x, torch.ones(n, 1, dtype=torch.int32))
    raises(ValueError, hvd.alltoall, x, [1] * (n + 1))
    raises(ValueError, hvd.alltoall, x, [3] * n)
    raises(ValueError, hvd.alltoall, x, [-1] + [1] * (n - 1))
    if n > 1:
        raises(ValueError, hvd.alltoall, torch.ones(n * 2 + 1))
    raises(ValueError, hvd.alltoall, torch.tensor(1.0))
    goes_on()


@case()
def bad_arguments():
    raises(ValueError, hvd.allreduce, torch.ones(1), average=True, op=hvd.Sum)
    raises(ValueError, hvd.poll, 12345)
    assert hvd.synchronize(12345) is None
    raises(ValueError, hvd.broadcast, torch.ones(1), hvd.size())
    raises(ValueError, hvd.broadcast, torch.ones(1), -1)
    raises(ValueError, hvd.allreduce, torch.ones(1), process_set=hvd.ProcessSet([0]))
    raises(ValueError, hvd.allreduce_, torch.ones(1), process_set=hvd.ProcessSet([0]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.allreduce(torch.ones(1), average=True)
    assert [w.category for w in caught] == [DeprecationWarning]
    goes_on()


@case(2, 3, 4)
def join_with_allreduce():
    """Ranks that have joined take part with zeros; Average still divides by all."""
    n, r = hvd.size(), hvd.rank()
    for first in range(n):
        for cached in (False, True):
            names = [f"j{i}" if cached else f"j{i}.{first}" for i in range(2)]
            if cached:
                for name in names:
                    hvd.allreduce(torch.ones(17), name=name)
            if r == first:
                last = hvd.join()
            else:
                for name in names:
                    for dtype in (torch.float32, torch.int32)[:1 if cached else 2]:
                        got = hvd.allreduce(torch.ones(17, dtype=dtype) * 6,
                                            name=f"{name}" if dtype is torch.float32
                                            else f"{name}.i")
                        want = torch.full((17,), 6.0 * (n - 1) / n)
                        if dtype is torch.int32:
                            want = want.trunc().int()
                        torch.testing.assert_close(got, want)
                last = hvd.join()
            assert 0 <= last < n and last != first, last
            assert len(set(hvd.allgather_object(last, name="last"))) == 1


@case(2, 3)
def join_with_other_reductions():
    n, r = hvd.size(), hvd.rank()
    if r == 0:
        hvd.join()
    else:
        equal(hvd.allreduce(torch.full((3,), 5.0), op=hvd.Min, name="m"), torch.full((3,), 5.0))
        equal(hvd.allreduce(torch.full((3,), -5.0), op=hvd.Max, name="M"),
              torch.full((3,), -5.0))
        equal(hvd.allreduce(torch.full((3,), 2.0), op=hvd.Product, name="p"),
              torch.full((3,), 2.0 ** (n - 1)))
        hvd.join()
    goes_on()


@case(2, 3)
def join_refuses_the_rest():
    n, r = hvd.size(), hvd.rank()
    if r == 0:
        hvd.join()
    else:
        raises(HIE, hvd.allgather, torch.ones(2), name="g")
        raises(HIE, hvd.broadcast, torch.ones(2), 1, name="b")
        raises(HIE, hvd.alltoall, torch.ones(n), name="a")
        raises(HIE, hvd.reducescatter, torch.ones(n), name="r")
        hvd.join()
    goes_on()


@case(2, 3)
def join_again_and_again():
    n, r = hvd.size(), hvd.rank()
    for i in range(5):
        for k in range(r + i % 2):
            hvd.allreduce(torch.ones(4), name="loop")
        hvd.join()
    hvd.barrier()


@case(2, 3)
def barrier_while_one_has_joined():
    if hvd.rank() == 0:
        hvd.join()
    else:
        hvd.barrier()
        hvd.join()
    goes_on()


@case(2, 3)
def barrier_waits_for_everybody():
    import time
    handle = hvd.allreduce_async(torch.ones(4), name="pending") if hvd.rank() else None
    if hvd.rank() == 0:
        time.sleep(0.3)             # the others have time to leave, if they can
    came = time.monotonic()
    hvd.barrier()
    left = time.monotonic()         # one clock for all processes of a host
    times = hvd.allgather_object((came, left), name="times")
    assert min(t[1] for t in times) >= max(t[0] for t in times), times
    if handle is None:
        handle = hvd.allreduce_async(torch.ones(4), name="pending")
    hvd.synchronize(handle)
