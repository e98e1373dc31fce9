"""Elastic state, sampler and loop, in jobs of a fixed size."""
import copy
import random

import torch

import horovod.torch as hvd
from cases import case, close, equal, raises, same_on_all_ranks
from horovod.common.exceptions import HorovodInternalError as HIE
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch import _copies


@case(2, 3)
def elastic_state():
    r = hvd.rank()
    torch.manual_seed(r)
    model = torch.nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1 * (r + 1), momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    opt.step()
    sampler = hvd.elastic.ElasticSampler(list(range(10)), shuffle=False)
    state = hvd.elastic.TorchState(model, opt, sampler=sampler, epoch=r, nothing=None)
    sampler.record_batch(0, 1)
    sampler.processed_num += r
    state.sync()
    assert state.epoch == 0 and opt.param_groups[0]["lr"] == 0.1
    assert sampler.processed_num == hvd.size()
    everybody = hvd.allgather(model.weight.detach().reshape(1, -1))
    assert bool((everybody == everybody[0]).all())
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    state.epoch = 5
    state.restore()
    equal(model.weight.detach(), before)
    assert state.epoch == 0
    with torch.no_grad():
        model.weight.add_(1)
    state.epoch = 6
    state.commit()
    state.restore()
    equal(model.weight.detach(), before + 1)
    assert state.epoch == 6
    if r == 1:
        state.on_hosts_updated(10, 1)
    e = raises(RuntimeError, state.check_host_updates)
    assert e.skip_sync is True
    state.check_host_updates()
    if r == 0:
        state.on_hosts_updated(20, 2)
    assert raises(RuntimeError, state.commit).skip_sync is False


@case(2, 3)
def only_what_differs_is_synced():
    """Ranks with one state compare a number each; what differs comes from rank 0."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 300)).sum().backward()
    optimizer.step()
    state = hvd.elastic.TorchState(model, optimizer, epoch=3)
    before = copy.deepcopy(model.state_dict())
    assert state._compare() == [True, True, True]
    state.sync()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    with torch.no_grad():
        model[1].running_mean[7] += hvd.rank()
    assert state._compare() == [False, True, True]
    state.sync()
    assert state._compare() == [True, True, True] and model[1].running_mean[7] == \
        before["1.running_mean"][7]
    optimizer.param_groups[0]["lr"] *= 1 + hvd.rank()
    assert state._compare() == [True, False, True]
    state.epoch += hvd.rank()
    state.save()
    assert state._compare() == [True, False, False]
    state.sync()
    assert state._compare() == [True, True, True] and state.epoch == 3
    state.restore()
    assert optimizer.param_groups[0]["lr"] == 0.001 and state.epoch == 3


@case(2)
def what_cannot_be_compared_is_synced():
    class Own:
        def __init__(self):
            self.value, self.hidden = hvd.rank(), lambda: None

        def state_dict(self):
            return dict(value=self.value, hidden=self.hidden)

        def load_state_dict(self, state):
            self.value = state["value"]
    own, model = Own(), torch.nn.Conv2d(3, 3, 2).to(memory_format=torch.channels_last)
    state = hvd.elastic.TorchState(model, own=own)
    assert state._compare() == [False, False, True]
    state.sync()
    assert own.value == 0
    same_on_all_ranks(model.weight)


@case(2, 3)
def elastic_run():
    """A failure restores the last commit, forms the job again and goes on."""
    r = hvd.rank()
    state = hvd.elastic.TorchState(step=0, log=None)
    calls = []

    @hvd.elastic.run
    def train(state):
        calls.append(state.step)
        while state.step < 4:
            hvd.allreduce(torch.ones(2), name="work")
            state.step += 1
            if state.step == 2:
                state.commit()
            if state.step == 3 and len(calls) == 1:
                raise HIE("something broke")
        return state.step
    resets = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])
    assert train(state) == 4 and calls == [0, 2] and resets == [hvd.size()]


@case(1, 2, 3)
def elastic_sampler():
    n, r = hvd.size(), hvd.rank()
    sampler = hvd.elastic.ElasticSampler(list(range(20)), shuffle=False)
    assert list(sampler) == list(range(20 + -20 % n))[r::n] or len(sampler) == -(-20 // n)
    first = list(sampler)
    assert list(sampler) == first
    sampler.record_batch(0, 2)
    assert sampler.processed_num == 2 * n
    sampler.reset()
    assert sampler.remaining_indices == list(range(2 * n, 20))
    saved = sampler.state_dict()
    sampler.set_epoch(1)
    assert sampler.processed_num == 0 and len(sampler.remaining_indices) == 20
    sampler.load_state_dict(saved)
    assert sampler.processed_num == 2 * n and sampler.epoch == 0
    shuffled = hvd.elastic.ElasticSampler(list(range(20)), seed=3)
    everybody = hvd.allgather_object(list(shuffled), name="samples")
    assert sorted(set(sum(everybody, []))) == list(range(20))


def trained(lr=0.1):
    """A model with batch norm, its optimizer with momentum, a step behind them."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4),
                                torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(5, 3)).pow(2).mean().backward()
    optimizer.step()


def frozen(*objects):
    return copy.deepcopy([o.state_dict() for o in objects])


def same(a, b):
    """Compares nested state dicts, bit by bit."""
    if isinstance(a, torch.Tensor):
        equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            same(x, y)
    else:
        assert a == b, (a, b)


@case(1, 2)
def a_commit_is_what_was_then():
    """Copies that are made while the training goes on hold the moment of the commit: also of
    batch norm statistics, which the forward pass changes."""
    model, optimizer = trained()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    state = hvd.elastic.TorchState(model, optimizer, scheduler=scheduler, batch=0)
    for state.batch in range(6):
        step(model, optimizer)
        scheduler.step()
        state.commit()
        then = frozen(model, optimizer, scheduler)
        for _ in range(state.batch):
            step(model, optimizer)
            scheduler.step()
        state.batch = -1
        state.restore()
        same(frozen(model, optimizer, scheduler), then)
        step(model, optimizer)
    momentum = optimizer.state[model[0].weight]["momentum_buffer"]
    pointer = momentum.data_ptr()
    state.restore()
    assert optimizer.state[model[0].weight]["momentum_buffer"].data_ptr() == pointer


@case(1)
def a_commit_copies_beside_the_training():
    """The copies are under way after the commit, and complete before anything changes."""
    model = torch.nn.Linear(1000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer)
    for change in (lambda: optimizer.step(),
                   lambda: model.load_state_dict(other.state_dict()),
                   lambda: hvd.broadcast_parameters(model.state_dict(), 0),
                   lambda: hvd.broadcast_optimizer_state(optimizer, 0),
                   lambda: state.sync(), lambda: state.restore(), lambda: state.save()):
        model(torch.ones(1, 1000)).sum().backward()
        other = torch.nn.Linear(1000, 1000)
        state.commit()
        then = model.weight.detach().clone()
        assert _copies._flight is not None
        flight = _copies._flight
        change()
        assert _copies._flight is not flight
        if _copies._flight is None:
            state.restore()
            equal(model.weight.detach(), then)
    _copies.settle()
    assert not model._load_state_dict_pre_hooks         # nothing stays in the user's model


@case(1)
def memory_of_commits_is_kept():
    model, optimizer = trained()
    state = hvd.elastic.TorchState(model, optimizer)

    def buffers():
        return {b.data_ptr() for h in state._handlers.values()
                for c in (h._snapshot._newest, h._snapshot._before) for b in c.buffers}
    for _ in range(3):
        state.commit()
    first = buffers()
    for _ in range(5):
        step(model, optimizer)
        state.commit()
    assert buffers() == first


@case(2)
def a_change_nobody_announced_spoils_the_commit():
    model, optimizer = trained()
    state = hvd.elastic.TorchState(model, optimizer, batch=1)
    state.commit()
    then = frozen(model, optimizer)
    step(model, optimizer)
    state.batch = 2
    state.commit()
    with torch.no_grad():
        model[0].weight.mul_(2)
    step(model, optimizer)
    state.restore()
    same(frozen(model, optimizer), then)
    assert state.batch == 1 and state._commits == 1
    state.commit()
    assert _copies._flight is None                      # patient from now on
    then = frozen(model, optimizer)
    with torch.no_grad():
        model[0].weight.mul_(2)
    state.restore()
    same(frozen(model, optimizer), then)


@case(2, 3)
def a_commit_that_not_all_agreed_on_is_not_restored():
    model, optimizer = trained()
    sampler = hvd.elastic.ElasticSampler(list(range(24)))
    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, batch=1)
    state.commit()
    then = frozen(model, optimizer, sampler)
    step(model, optimizer)
    sampler.record_batch(0, 2)
    state.batch = 2
    if hvd.rank() == 0:
        hvd.abort("for the test")       # the others cannot have agreed without rank 0
    raises(HIE, state.commit)
    assert state._commits == 1
    state.restore()
    same(frozen(model, optimizer, sampler), then)
    assert state.batch == 1
    hvd.shutdown()
    hvd.init()


@case(3)
def progress_of_uneven_ranks_is_merged():
    """Ranks with batches of different sizes; the job shrinks to each of the sizes."""
    size, rank = hvd.size(), hvd.rank()
    dataset = list(range(100, 131))
    sampler = hvd.elastic.ElasticSampler(dataset, seed=5)
    state = hvd.elastic.TorchState(sampler=sampler, batch=0)
    mine = list(sampler)
    for i in range(2):
        sampler.record_batch(i, rank + 1)
        state.commit()
    done = sum(hvd.allgather_object(mine[:2 * (rank + 1)], name="done"), [])
    assert len(done) == 2 + 4 + 6
    sampler.record_batch(2, 1)                          # not committed
    state.restore()
    for other in range(size):
        if rank != other:       # who is the new rank 0 does not matter
            assert sorted(sampler.remaining_indices) == \
                sorted(set(range(31)) - set(done)), sampler.remaining_indices
    state.on_reset()
    assert sorted(sampler.remaining_indices) == sorted(set(range(31)) - set(done))
    state.sync()
    again = sum(hvd.allgather_object(list(sampler), name="again"), [])
    assert set(again) == set(range(31)) - set(done)
    sampler.record_batch(0, 1)
    state.commit()
    state.on_reset()
    left = set(sampler.remaining_indices)
    assert len(left) == 31 - 12 - 3 and left < set(again)
    sampler.set_epoch(1)
    assert len(sampler.remaining_indices) == 31 and not sampler._beyond


@case(1)
def samples_are_dealt_out_once():
    """Any sizes of job and batches, with restores and resets at any moment."""
    class World:
        size, rank = 1, 0
    module = hvd.elastic.sampler.mpi_ops
    real = module.size, module.rank
    module.size, module.rank = lambda: World.size, lambda: World.rank
    try:
        for seed in range(200):
            deal_out(World, random.Random(seed))
    finally:
        module.size, module.rank = real


def deal_out(world, dice):
    total = dice.randrange(1, 60)
    counts = [0] * total
    state = {"epoch": 3, "processed_num": 0}
    for _ in range(200):
        world.size = dice.randrange(1, 6)
        samplers = []
        for world.rank in range(world.size):
            samplers.append(hvd.elastic.ElasticSampler(list(range(total)), seed=1))
            samplers[-1].load_state_dict(state)
        deals = [list(s) for s in samplers]
        kept, todo = [0] * world.size, len(samplers[0].remaining_indices)
        for _ in range(dice.randrange(4)):
            batch = [dice.randrange(4) for _ in samplers]
            for s, n, r in zip(samplers, batch, range(world.size)):
                n = min(n, len(deals[r]) - s._done)
                s.record_batch(0, n)
            done = [s._done for s in samplers]
            if len(set(done)) > 1:
                for s in samplers:
                    s._learn(done)
            kept = done
            state = samplers[dice.randrange(world.size)].state_dict()   # a commit
        for r, deal in enumerate(deals):
            for i in range(kept[r]):
                if r + i * world.size < todo:           # no padding
                    counts[deal[i]] += 1
        if not samplers[0].remaining_indices:
            break
    assert max(counts) <= 1, counts
    if not samplers[0].remaining_indices:
        assert counts == [1] * total, counts


@case(2)
def everybody_leaves_at_the_same_commit():
    state = hvd.elastic.TorchState(batch=0)
    calls, resets = [], []
    state.register_reset_callbacks([lambda: resets.append(state.batch)])

    @hvd.elastic.run
    def train(state):
        calls.append(state.batch)
        while state.batch < 10:
            state.batch += 1
            if state.batch == 4 and hvd.rank() == 1:
                state.on_hosts_updated(7, 2)
            state.commit()
        return hvd.allreduce(torch.ones(1), op=hvd.Sum).item()
    assert train(state) == hvd.size() and calls == [0, 4] and resets == [4]
    assert state._commits == 10


@case(2, 3)
def everything_works_after_a_reset():
    """DistributedOptimizer, SyncBatchNorm, process sets and join, in the next generation."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), hvd.SyncBatchNorm(4),
                                torch.nn.Linear(4, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1, 0.9),
                                         named_parameters=model.named_parameters())
    state = hvd.elastic.TorchState(model, optimizer, batch=0)
    entered = []

    @hvd.elastic.run
    def train(state):
        entered.append(state.batch)
        while state.batch < 6:
            step(model, optimizer)
            state.batch += 1
            if state.batch in (2, 3) and len(entered) < 3:
                optimizer.zero_grad()
                model(torch.randn(5, 3)).sum().backward()   # under way when the job ends
                raise HIE("something broke") if state.batch == 2 else HostsUpdatedInterrupt(False)
            state.commit()
        hvd.join()
        return state.batch
    assert train(state) == 6 and entered == [0, 1, 1] or entered == [0, 1, 3], entered
    same_on_all_ranks(*model.parameters())


@case(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def process_sets_after_a_reset():
    first = hvd.add_process_set([0])
    state = hvd.elastic.TorchState(batch=0)

    @hvd.elastic.run
    def train(state):
        both = hvd.add_process_set([0, 1])
        if both.included():
            x = hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=both)
            close(x, torch.tensor([2.0]))
        if state.batch == 0:
            state.batch = 1
            state.save()
            raise HIE("again")
        return first.process_set_id
    assert train(state) is None
