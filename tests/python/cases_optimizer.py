"""DistributedOptimizer: every option and edge case; results against plain torch."""
import copy
import gc
import warnings
import weakref

import torch

import horovod.torch as hvd
from cases import case, close, equal, raises, same_on_all_ranks


def net(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))


def data(rank, step, rows=4):
    g = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(rows, 6, generator=g)


def wrap(model, kind=torch.optim.SGD, kwargs=None, named=True, **options):
    optimizer = kind(model.parameters(), **(kwargs or dict(lr=0.1)))
    return hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters() if named else None, **options)


def train(model, optimizer, steps=3):
    for step in range(steps):
        optimizer.zero_grad()
        model(data(hvd.rank(), step)).pow(2).sum().backward()
        optimizer.step()


def same(model):
    same_on_all_ranks(*[p for p in model.parameters()])


def reduced(model, op=hvd.Average):
    """What the gradients of a step should be, by single operations."""
    return [hvd.allreduce(p.grad, op=op) for p in model.parameters()]


@case(1, 2, 3, limit=120)
def every_optimizer():
    kinds = [k for k in vars(torch.optim).values() if isinstance(k, type) and
             issubclass(k, torch.optim.Optimizer) and
             k not in (torch.optim.Optimizer, torch.optim.SparseAdam)]
    assert len(kinds) > 10
    for kind in kinds:
        name = kind.__name__
        model = net(seed=hvd.rank())
        hvd.broadcast_parameters(model.state_dict(), 0)
        params = [p for p in model.parameters() if name != "Muon" or p.dim() == 2]
        opt = hvd.DistributedOptimizer(kind(params, lr=0.01))
        assert isinstance(opt, kind) and type(opt).__name__ == name
        assert type(opt).__module__ == "horovod.torch.optimizer"

        def closure(step):
            opt.zero_grad()
            loss = model(data(hvd.rank(), step)).pow(2).sum()
            loss.backward()
            return loss
        for step in range(2):
            opt.step(lambda: closure(step))
        if name == "LBFGS":
            raises(ValueError, hvd.broadcast_optimizer_state, opt, 0)
        else:
            closure(2)
            opt.step()
            hvd.broadcast_optimizer_state(opt, 0)
        if name != "Muon":
            same(model)


@case()
def gradients_are_reduced():
    for op in (hvd.Average, hvd.Sum, hvd.Min, hvd.Max):
        if hvd.size() == 1 and op != hvd.Average:
            continue
        model, plain = net(), net()
        opt = wrap(model, op=op)
        for step in range(3):
            opt.zero_grad()
            model(data(hvd.rank(), step)).sum().backward()
            opt.synchronize()
            plain.load_state_dict(model.state_dict())
            plain.zero_grad()
            plain(data(hvd.rank(), step)).sum().backward()
            for p, want in zip(model.parameters(), reduced(plain, op)):
                close(p.grad, want)
            with opt.skip_synchronize():
                opt.step()
        same(model)


@case(2, 3)
def buckets_stay():
    """p.grad is the same view of shared memory in every step, with or without None."""
    model = net()
    opt = wrap(model)
    train(model, opt, 2)
    where = [p.grad.data_ptr() for p in model.parameters()]
    for none in (True, False):
        for step in range(3):
            opt.zero_grad(set_to_none=none)
            assert (model[0].weight.grad is None) == none
            model(data(hvd.rank(), step)).pow(2).sum().backward()
            opt.step()
        assert [p.grad.data_ptr() for p in model.parameters()] == where
    kept = model[0].weight.grad
    values = kept.clone()
    train(model, opt, 2)
    equal(kept, values)             # who keeps an old p.grad keeps its values
    same(model)


@case(1, 2, 3)
def names():
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    opt = hvd.DistributedOptimizer(sgd)
    assert sorted(opt._parameter_names.values()) == [f"allreduce.noname.0.{i}"
                                                     for i in range(4)]
    two = torch.optim.SGD([{"params": model[0].parameters()},
                           {"params": model[2].parameters()}], lr=0.1)
    assert len(set(hvd.DistributedOptimizer(two)._parameter_names.values())) == 4
    raises(ValueError, hvd.DistributedOptimizer, sgd, model.parameters())
    raises(ValueError, hvd.DistributedOptimizer, sgd, named + [("0.weight", model[0].weight)])
    raises(ValueError, hvd.DistributedOptimizer, sgd, named[:-1])
    hvd.DistributedOptimizer(sgd, named + [("more", torch.ones(1))])


@case(1, 2)
def bad_options():
    model = net()
    raises(ValueError, wrap, model, backward_passes_per_step=0)
    raises(ValueError, wrap, model, gradient_predivide_factor=2.0, op=hvd.Sum)
    raises(ValueError, wrap, model, groups=0)
    raises(ValueError, wrap, model, groups=-1)
    raises(ValueError, wrap, model, groups=[[1]])
    raises(ValueError, wrap, model, groups=[[model[0].weight], [model[0].weight]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        wrap(model, num_groups=1)
    assert [w.category for w in caught] == [DeprecationWarning]


@case(2, 3)
def options_give_the_same_weights():
    """Groups, predivision and the process set change how, not what."""
    want = net()
    train(want, wrap(want))
    for options in (dict(groups=1), dict(groups=2), dict(groups=9),
                    dict(gradient_predivide_factor=4.0), dict(named=False),
                    dict(groups=2, gradient_predivide_factor=2.0),
                    dict(process_set=hvd.global_process_set), dict(num_groups=2)):
        model = net()
        train(model, wrap(model, **options))
        for a, b in zip(model.parameters(), want.parameters()):
            close(a, b)
        same(model)
    model = net()
    opt = wrap(model, groups=[[model[0].weight, model[2].bias]])
    train(model, opt)
    for a, b in zip(model.parameters(), want.parameters()):
        close(a, b)


@case(2, 3)
def compressions():
    want = net()
    train(want, wrap(want))

    class Halved:
        """A compressor of the user's own."""
        @staticmethod
        def compress(tensor):
            return tensor * 0.5, tensor.shape

        @staticmethod
        def decompress(tensor, ctx):
            assert tensor.shape == ctx
            return tensor * 2
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16, Halved):
        model = net()
        opt = wrap(model, compression=compression)
        train(model, opt)
        for a, b in zip(model.parameters(), want.parameters()):
            close(a, b, rtol=0.05, atol=0.05)
            assert a.grad.dtype == torch.float32
        same(model)


@case(2, 3)
def double_step_warns_once():
    model = net()
    opt = wrap(model)
    model(data(0, 0)).sum().backward()
    opt.synchronize()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.step()
    texts = [str(w.message) for w in caught]
    assert len(texts) == 1 and \
        "optimizer.step() called without optimizer.skip_synchronize()" in texts[0]
    opt.zero_grad()
    model(data(0, 0)).sum().backward()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.step()
    assert not caught


@case(2, 3)
def misuse():
    model = net()
    opt = wrap(model)
    train(model, opt, 2)
    for _ in range(2):
        opt.zero_grad()
        model(data(0, 0)).sum().backward()
        raises(AssertionError, opt.zero_grad)
        raises(AssertionError, model(data(0, 1)).sum().backward)
        opt.step()
    model = net()
    opt = wrap(model)
    train(model, opt, 1)
    opt.zero_grad()
    loss = model(data(0, 0)).pow(2).sum()
    raises(AssertionError, loss.backward, create_graph=True)
    opt.load_state_dict(opt.state_dict())
    model.zero_grad()
    train(model, opt, 1)


@case(2, 3)
def accumulation():
    """Gradients of several passes are summed; an early step takes what there is."""
    for passes, steps in ((2, 4), (3, 4)):
        model, plain = net(), net()
        opt = wrap(model, backward_passes_per_step=passes)
        sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
        opt.zero_grad()
        for step in range(steps):
            model(data(hvd.rank(), step)).pow(2).mean().backward()
            plain(data(hvd.rank(), step)).pow(2).mean().backward()
            if step % passes < passes - 1 and step < steps - 1:
                raises(AssertionError, opt.zero_grad)
                continue
            opt.step()
            opt.zero_grad()
            for p, g in zip(plain.parameters(), reduced(plain)):
                p.grad = g
            sgd.step()
            sgd.zero_grad()
        for a, b in zip(model.parameters(), plain.parameters()):
            close(a, b)
        same(model)
    opt.set_backward_passes_per_step(1)
    train(model, opt, 2)
    same(model)


class Heads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Linear(6, 4)
        self.heads = torch.nn.ModuleList([torch.nn.Linear(4, 2) for _ in range(4)])
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x, head):
        return self.heads[head](self.body(x))


@case(2, 3, 4)
def ranks_use_different_parameters():
    for options in (dict(), dict(groups=2), dict(compression=hvd.Compression.fp16),
                    dict(backward_passes_per_step=2)):
        model = Heads()
        opt = wrap(model, **options)
        for step in range(4):
            opt.zero_grad()
            for _ in range(opt.backward_passes_per_step):
                model(data(hvd.rank(), step), (hvd.rank() + step) % 4).pow(2).sum().backward()
            opt.step()
        same(model)


@case(2, 3)
def two_losses():
    """Two backward passes that reach different parameters belong to one step."""
    model = Heads()
    opt = wrap(model)
    for step in range(3):
        opt.zero_grad()
        model.heads[0](torch.ones(2, 4)).sum().backward()
        model.heads[1](torch.ones(2, 4)).sum().backward()
        opt.step()
    same(model)


@case(2, 3)
def requires_grad_comes_and_goes():
    """A GAN: two optimizers, whose parameters are frozen in turn."""
    generator, critic = net(1), torch.nn.Sequential(torch.nn.Linear(3, 4),
                                                    torch.nn.Linear(4, 1))
    torch.manual_seed(3)
    for p in critic.parameters():
        torch.nn.init.normal_(p)
    hvd.broadcast_parameters(critic.state_dict(), 0)
    opt_g, opt_c = wrap(generator), wrap(critic)
    for step in range(3):
        for p in critic.parameters():
            p.requires_grad_(False)
        opt_g.zero_grad()
        critic(generator(data(hvd.rank(), step))).sum().backward()
        opt_g.step()
        for p in critic.parameters():
            p.requires_grad_(True)
        opt_c.zero_grad()
        (critic(generator(data(hvd.rank(), step)).detach()).pow(2).sum()).backward()
        opt_c.step()
    same(generator)
    same(critic)


@case(2, 3)
def unfrozen_and_added_later():
    model = net()
    for p in model[0].parameters():
        p.requires_grad_(False)
    opt = wrap(model)
    train(model, opt, 2)
    assert model[0].weight.grad is None
    for p in model[0].parameters():
        p.requires_grad_(True)
    train(model, opt, 3)
    same(model)
    extra = torch.nn.Linear(3, 2)
    hvd.broadcast_parameters(extra.state_dict(), 0)
    opt.add_param_group({"params": extra.parameters()})
    for step in range(3):
        opt.zero_grad()
        extra(model(data(hvd.rank(), step))).pow(2).sum().backward()
        opt.step()
    same(model)
    same(extra)
    assert extra.weight.grad is not None


@case(1, 2)
def integer_parameters():
    model = net()
    model.register_parameter("count", torch.nn.Parameter(torch.tensor([1, 2]),
                                                         requires_grad=False))
    opt = wrap(model)
    train(model, opt, 2)
    assert model.count.grad is None
    hvd.broadcast_optimizer_state(opt, 0)
    assert model.count.grad is None


@case(2, 3)
def state_and_options_are_carried_over():
    model = net()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(data(0, 0)).sum().backward()
    sgd.step()
    momentum = sgd.state[model[0].weight]["momentum_buffer"].clone()
    scheduler = torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)
    opt = hvd.DistributedOptimizer(sgd, model.named_parameters())
    equal(opt.state[model[0].weight]["momentum_buffer"], momentum)
    assert opt.defaults["momentum"] == 0.9 and opt.param_groups[0] is sgd.param_groups[0]
    opt.zero_grad()
    train(model, opt, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.05
    saved = copy.deepcopy(opt.state_dict())
    assert set(saved) == {"state", "param_groups"}
    plain = torch.optim.SGD(net().parameters(), lr=1.0)
    plain.load_state_dict(saved)
    opt.load_state_dict(saved)
    scheduler.step()
    assert opt.param_groups[0]["lr"] == 0.025
    adagrad = torch.optim.Adagrad(model.parameters(), initial_accumulator_value=0.5)
    opt = hvd.DistributedOptimizer(adagrad)
    assert opt.state[model[0].weight]["sum"].flatten()[0] == 0.5


@case(2, 3)
def channels_last_and_replaced_gradients():
    def build():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Conv2d(2, 4, 3), torch.nn.Flatten(),
                                   torch.nn.Linear(16, 2))
    x = [torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(k))
         for k in range(hvd.size())][hvd.rank()]
    weights = []
    for last in (False, True):
        model = build()
        if last:
            model = model.to(memory_format=torch.channels_last)
        opt = wrap(model)
        for _ in range(3):
            opt.zero_grad()
            model(x.to(memory_format=torch.channels_last) if last else x).pow(2).sum() \
                .backward()
            opt.step()
        same(model)
        weights.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*weights):
        close(a, b)
    # Gradients the user puts in place of ours, before the reduction.
    model = net()
    opt = wrap(model)
    for step in range(3):
        opt.zero_grad()
        for p in model.parameters():
            p.grad = torch.full_like(p, float(hvd.rank()))
        opt.step()
        equal(model[0].bias.grad, torch.full((8,), (hvd.size() - 1) / 2))
    same(model)


@case(2, 3)
def closures():
    """Gradients computed by a closure are reduced before they are applied."""
    model, want = net(), net()
    train(want, wrap(want), 3)
    opt = wrap(model)
    for step in range(3):
        def closure():
            opt.zero_grad()
            loss = model(data(hvd.rank(), step)).pow(2).sum()
            loss.backward()
            return loss
        assert isinstance(opt.step(closure), torch.Tensor)
    for a, b in zip(model.parameters(), want.parameters()):
        close(a, b)
    model = net()
    opt = wrap(model, torch.optim.LBFGS, dict(lr=0.1, max_iter=5,
                                              line_search_fn="strong_wolfe"))
    for step in range(2):
        opt.step(closure)
    same(model)


@case(2, 3)
def sparse_gradients():
    """Also when a rank has none in a step, or none in the first one."""
    def build(sparse):
        torch.manual_seed(0)
        return torch.nn.ModuleList([torch.nn.Embedding(10, 4, sparse=sparse),
                                    torch.nn.Linear(4, 2)])

    def run(sparse, **options):
        model = build(sparse)
        opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                       model.named_parameters(), **options)
        for step in range(4):
            opt.zero_grad()
            if (hvd.rank() + step) % 2 == 0:
                index = torch.tensor([hvd.rank(), step, 3, 3])
                model[1](model[0](index)).pow(2).sum().backward()
            else:
                model[1](torch.ones(2, 4)).pow(2).sum().backward()
            opt.step()
            if sparse and step > 1:
                assert model[0].weight.grad.is_sparse or options
        same(model)
        return model
    want = run(False)
    for options in (dict(), dict(sparse_as_dense=True), dict(gradient_predivide_factor=2.0),
                    dict(groups=2)):
        got = run(True, **options)
        for a, b in zip(got.parameters(), want.parameters()):
            close(a, b)
    got = run(True, compression=hvd.Compression.fp16)
    for a, b in zip(got.parameters(), want.parameters()):
        close(a, b, rtol=0.05, atol=0.05)
    emb = torch.nn.Embedding(10, 4, sparse=True)
    hvd.broadcast_parameters(emb.state_dict(), 0)
    for dense in (False, True):
        opt = hvd.DistributedOptimizer(torch.optim.SparseAdam(emb.parameters()),
                                       sparse_as_dense=dense)
        for step in range(3):
            opt.zero_grad()
            emb(torch.tensor([hvd.rank(), step])).sum().backward()
            opt.step()
    same(emb)


@case(2, 3)
def sparse_from_the_second_step_on():
    """The first gradients of an embedding come when the plan has been made already."""
    torch.manual_seed(0)
    emb, lin = torch.nn.Embedding(6, 2, sparse=True), torch.nn.Linear(2, 1)
    params = [("e", emb.weight), ("w", lin.weight), ("b", lin.bias)]
    opt = hvd.DistributedOptimizer(torch.optim.SGD([p for _, p in params], lr=0.1), params)
    for step in range(4):
        opt.zero_grad()
        x = emb(torch.tensor([hvd.rank()])) if step and hvd.rank() == 0 else torch.ones(1, 2)
        lin(x).sum().backward()
        opt.step()
    same(emb)
    same(lin)


@case(1, 2, 3)
def silence_and_detachment():
    model, plain = net(), net()
    opt = wrap(model)
    sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(2):
        opt.zero_grad()
        sgd.zero_grad()
        with opt.no_sync():
            with opt.no_sync():
                model(data(hvd.rank(), step)).pow(2).sum().backward()
            model(data(hvd.rank(), step + 10)).pow(2).sum().backward()
        model(data(hvd.rank(), step + 20)).pow(2).sum().backward()
        opt.step()
        for k in (0, 10, 20):
            plain(data(hvd.rank(), step + k)).pow(2).sum().backward()
        for p, g in zip(plain.parameters(), reduced(plain)):
            p.grad = g
        sgd.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        close(a, b)
    opt.remove_comm_hooks()
    for _ in range(2):              # hooks are gone: backward may run as often as it likes
        model(data(0, 0)).sum().backward()
    opt.step()
    same(model)
    opt.register_comm_hooks()
    opt.zero_grad()
    train(model, opt, 2)
    same(model)
    # An optimizer that dies takes its hooks along; another one can follow.
    reference = weakref.ref(opt)
    del opt
    gc.collect()
    assert reference() is None and not model[0].weight._post_accumulate_grad_hooks
    train(model, wrap(model), 2)
    same(model)


@case(2, 3)
def synchronize_many_times():
    model = net()
    opt = wrap(model)
    opt.zero_grad()
    for step in range(3):
        model(data(hvd.rank(), step)).sum().backward()
        opt.synchronize()
        grads = [p.grad.clone() for p in model.parameters()]
        same_on_all_ranks(*grads)
    opt.synchronize()
    for p, g in zip(model.parameters(), grads):
        close(p.grad, g)            # the average of equal gradients
    with opt.skip_synchronize():
        opt.step()
    same(model)


@case(2, 3)
def several_optimizers_at_once():
    """Also of twins, whose parameters have the same names."""
    models = [net(0), net(1), net(1)]
    opts = [wrap(m, named=False) for m in models]
    for step in range(3):
        for opt in opts:
            opt.zero_grad()
        sum(m(data(hvd.rank(), step)).pow(2).sum() for m in models).backward()
        for opt in reversed(opts):
            opt.step()
    for model in models:
        same(model)
    for a, b in zip(models[1].parameters(), models[2].parameters()):
        equal(a, b)


@case(2, 4)
def ranks_with_different_models():
    """Said on all ranks, instead of a hang or garbage."""
    model = torch.nn.Linear(3, 2 + hvd.rank())
    opt = wrap(model)

    def step():
        model(torch.ones(1, 3)).sum().backward()
        opt.step()
    e = raises(hvd.HorovodInternalError, step)
    assert ("the ranks have different parameters: where rank 0 has weight [2, 3] float32, rank 1 "
            "has weight [3, 3] float32") in str(e), e
    opt.remove_comm_hooks()


@case(1, 2, 3)
def optimizer_state():
    """State and options of the root, with their types; weights and counters stay."""
    r = hvd.rank()
    for kind, kwargs in ((torch.optim.SGD, dict(lr=0.1)),
                         (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.1)),
                         (torch.optim.Adam, dict(lr=0.1, amsgrad=True, weight_decay=0.1)),
                         (torch.optim.AdamW, dict(lr=0.1, betas=(0.8, 0.9)))):
        for has_state in (False, True):
            model = net()
            opt = kind(model.parameters(), **kwargs)
            if has_state and r == 0:
                for _ in range(3):
                    model(torch.ones(1, 6)).sum().backward()
                    opt.step()
            if r != 0:
                opt.param_groups[0]["lr"] = 5.0
            hvd.broadcast_parameters(model.state_dict(), 0)
            before = [p.detach().clone() for p in model.parameters()]
            types = {k: type(v) for k, v in opt.param_groups[0].items()}
            opt = hvd.DistributedOptimizer(opt, model.named_parameters())
            hvd.broadcast_optimizer_state(opt, 0)
            for p, old in zip(model.parameters(), before):
                equal(p.detach(), old)
            assert opt.param_groups[0]["lr"] == 0.1
            assert {k: type(v) for k, v in opt.param_groups[0].items()} == types
            sizes = hvd.allgather_object(len(opt.state_dict()["state"]), name="sizes")
            assert len(set(sizes)) == 1
            for p in model.parameters():
                for value in opt.state[p].values() if p in opt.state else ():
                    if isinstance(value, torch.Tensor):
                        same_on_all_ranks(value.reshape(-1))
            if has_state and "Adam" in kind.__name__:
                assert all(opt.state[p]["step"] == 3 for p in model.parameters())
            if not has_state:
                assert all(bool((p.grad == 0).all()) for p in model.parameters())
            opt.zero_grad()
            train(model, opt, 2)
            same(model)


@case(2, 3, 4)
def adasum_optimizer():
    """The ranks' updates are combined, parameter by parameter."""
    for compression in (hvd.Compression.none, hvd.Compression.fp16):
        model, plain = net(), net()
        opt = wrap(model, op=hvd.Adasum, compression=compression)
        assert all(bool((p.grad == 0).all()) for p in model.parameters())
        sgd = torch.optim.SGD(plain.parameters(), lr=0.1)
        for step in range(2):
            opt.zero_grad()
            model(data(hvd.rank(), step)).pow(2).mean().backward()
            raises(AssertionError, opt.zero_grad)
            opt.synchronize()
            opt.step()
            starts = [p.detach().clone() for p in plain.parameters()]
            sgd.zero_grad()
            plain(data(hvd.rank(), step)).pow(2).mean().backward()
            sgd.step()
            with torch.no_grad():
                for p, start in zip(plain.parameters(), starts):
                    p.copy_(start + hvd.allreduce(p - start, op=hvd.Adasum))
        for a, b in zip(model.parameters(), plain.parameters()):
            close(a, b, rtol=1e-2, atol=1e-3)
        same(model)
    raises(AssertionError, opt.skip_synchronize().__enter__)
