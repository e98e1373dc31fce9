"""Process sets, static and dynamic."""
import os

import torch

import horovod.torch as hvd
from cases import case, equal, raises, same_on_all_ranks

DYNAMIC = {"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}


def even_and_odd():
    n = hvd.size()
    return hvd.add_process_set(range(0, n, 2)), hvd.add_process_set(list(range(1, n, 2)))


def mine_of(even, odd):
    return even if hvd.rank() % 2 == 0 else odd


@case(2, 3, 4, env=DYNAMIC)
def dynamic_sets():
    n, r = hvd.size(), hvd.rank()
    even, odd = even_and_odd()
    mine = mine_of(even, odd)
    assert mine.included() and mine.size() == len(mine.ranks)
    assert mine.rank() == mine.ranks.index(r)
    other = odd if mine is even else even
    assert not other.included()
    raises(ValueError, other.rank)
    raises(ValueError, hvd.allreduce, torch.ones(1), process_set=other)
    raises(ValueError, hvd.broadcast, torch.ones(1), other.ranks[0], process_set=mine)
    x = torch.full((5,), float(r))
    equal(hvd.allreduce(x, op=hvd.Sum, process_set=mine, name="same"),
          torch.full((5,), float(sum(mine.ranks))))
    equal(hvd.allgather(torch.tensor([r]), process_set=mine), torch.tensor(mine.ranks))
    root = mine.ranks[-1]
    equal(hvd.broadcast(x, root, process_set=mine), torch.full((5,), float(root)))
    k = len(mine.ranks)
    got = hvd.alltoall(torch.arange(k), process_set=mine)
    equal(got, torch.full((k,), mine.rank()))
    equal(hvd.reducescatter(torch.ones(2 * k), op=hvd.Sum, process_set=mine),
          torch.full((2,), float(k)))
    hvd.grouped_allreduce_([torch.ones(2)] * 3, process_set=mine)
    assert hvd.broadcast_object(r, root, process_set=mine) == root
    assert hvd.allgather_object(r, process_set=mine) == mine.ranks
    ids = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    assert ids[0] == list(range(n)) and ids[mine.process_set_id] == mine.ranks
    raises(ValueError, hvd.add_process_set, range(n))
    raises(ValueError, hvd.add_process_set, list(reversed(even.ranks)))
    old = odd.process_set_id
    assert hvd.remove_process_set(odd) and odd.process_set_id is None
    for call in (hvd.allreduce, hvd.allgather, hvd.barrier):
        e = raises(ValueError, call, *([torch.ones(1)] if call is not hvd.barrier else []),
                   process_set=odd)
        assert "not registered: it was removed" in str(e), e
    assert not hvd.remove_process_set(odd) and not hvd.remove_process_set(hvd.global_process_set)
    if r == 0 and n > 1:
        raises(ValueError, hvd.allreduce, torch.ones(1), process_set=odd)
    again = hvd.add_process_set(hvd.ProcessSet(range(1, n, 2)))
    assert again.process_set_id == old
    assert hvd.remove_process_set(again) and hvd.remove_process_set(even)


@case(2, 3, env=DYNAMIC)
def bad_sets():
    n = hvd.size()
    raises(ValueError, hvd.add_process_set, [0, n])
    raises(ValueError, hvd.add_process_set, [0, 0])
    raises(ValueError, hvd.ProcessSet, ["a"])
    got = hvd.add_process_set([0])
    assert got.process_set_id == 1 and str(got).startswith("ProcessSet(process_set_id=1, "
                                                           "ranks=[0], mpi_comm=None")
    hvd.remove_process_set(got)


@case(1, env=DYNAMIC)
def a_world_of_one():
    raises(ValueError, hvd.add_process_set, [0])


@case(2, 3)
def not_dynamic():
    raises(ValueError, hvd.add_process_set, [0])


@case(2, 4, env=DYNAMIC)
def sets_do_not_wait_for_each_other():
    even, odd = even_and_odd()

    def come():
        return hvd.allreduce_async(torch.ones(10), name="even", process_set=even)
    handle = come() if hvd.rank() == 2 else None
    if hvd.rank() % 2 == 1:
        hvd.barrier(process_set=odd)
        hvd.allreduce(torch.ones(10), process_set=odd)
    hvd.barrier()                   # rank 0 has not come to the even ones yet
    if hvd.rank() == 0:
        handle = come()
    if handle is not None:
        hvd.synchronize(handle)
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


@case(2, 3, started=False)
def static_sets():
    n = int(os.environ["HOROVOD_SIZE"])
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet(range(1, n))]
    hvd.init(process_sets=sets)
    assert hvd.mpi_ops._basics._get_process_set_ids_and_ranks() == {
        0: list(range(n)), 1: [0], 2: list(range(1, n))}
    assert [s.process_set_id for s in sets] == [1, 2]
    mine = sets[0] if hvd.rank() == 0 else sets[1]
    equal(hvd.allreduce(torch.ones(2), op=hvd.Sum, process_set=mine),
          torch.full((2,), float(mine.size())))
    hvd.barrier()
    hvd.shutdown()
    twice = [hvd.ProcessSet([0]), hvd.ProcessSet([0])]
    raises(ValueError, hvd.init, process_sets=twice)
    assert hvd.is_initialized()
    hvd.init(process_sets=twice[:1])
    hvd.barrier()
    hvd.shutdown()
    raises(ValueError, hvd.init, process_sets=[hvd.ProcessSet([0, n])])
    hvd.init()
    hvd.barrier()
    hvd.shutdown()


@case(2, 3, env=DYNAMIC)
def optimizer_on_a_set():
    """Members stay equal; a rank outside trains alone, without communication."""
    r = hvd.rank()
    even, odd = even_and_odd()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                   named_parameters=model.named_parameters(),
                                   process_set=even)
    torch.manual_seed(r)
    for _ in range(3 + (r % 2) * 2):        # the others may do as many steps as they like
        opt.zero_grad()
        model(torch.randn(3, 4)).pow(2).sum().backward()
        opt.synchronize()
        with opt.skip_synchronize():
            opt.step()
    if r % 2 == 0:
        same_on_all_ranks(model.weight, process_set=even)
    everybody = hvd.allgather(model.weight.detach().reshape(1, -1))
    if hvd.size() > 1:
        assert not torch.equal(everybody[0], everybody[1])
    hvd.broadcast_parameters(model.state_dict(), even.ranks[-1],
                             process_set=even) if r % 2 == 0 else None
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


@case(2, 3, env=DYNAMIC)
def join_on_a_set():
    even, odd = even_and_odd()
    mine = mine_of(even, odd)
    assert hvd.join(process_set=mine) in mine.ranks
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)


@case(2, 3, env=DYNAMIC)
def sync_batch_norm_on_a_set():
    even, odd = even_and_odd()
    mine = mine_of(even, odd)
    layer = hvd.SyncBatchNorm(2, process_set=mine)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (mine.rank() + 1)
    whole = torch.cat([torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (k + 1)
                       for k in range(mine.size())])
    want = torch.nn.BatchNorm1d(2)(whole)[2 * mine.rank():2 * mine.rank() + 2]
    torch.testing.assert_close(layer(x), want, rtol=1e-5, atol=1e-5)
    hvd.remove_process_set(odd)
    hvd.remove_process_set(even)
