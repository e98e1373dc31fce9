"""What the operations compute: dtypes, shapes, orders, scale factors, variants."""
import itertools

import torch

import horovod.torch as hvd
from cases import case, close, equal, same_on_all_ranks

INTS = [torch.int32, torch.int64]
FLOATS = [torch.float16, torch.float32, torch.float64]
SMALL = [torch.uint8, torch.int8, torch.int16]
GATHERED = SMALL + INTS + FLOATS + [torch.bool, torch.bfloat16]


def values(dtype, dim, seed=0, high=100):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, high, (17,) * dim, generator=g).to(dtype)


@case()
def allreduce_sums():
    n = hvd.size()
    for dtype, dim in itertools.product(INTS + FLOATS + [torch.bfloat16], (1, 2, 3)):
        x = values(dtype, dim, high=50)
        summed = hvd.allreduce(x, average=False)
        assert summed.dtype == dtype and summed.shape == x.shape
        close(summed, x * n, rtol=1e-2 if dtype in (torch.float16, torch.bfloat16) else 0,
              atol=0)
        equal(x, values(dtype, dim, high=50))
        same_on_all_ranks(summed)


@case()
def allreduce_averages():
    n, r = hvd.size(), hvd.rank()
    for dtype in INTS + SMALL[1:]:
        x = torch.tensor([-3, 3, 7, 0, -1], dtype=dtype) + r
        total = sum(torch.tensor([-3, 3, 7, 0, -1], dtype=torch.int64) + k for k in range(n))
        equal(hvd.allreduce(x).long(), torch.div(total, n, rounding_mode="trunc"))
    for dtype in FLOATS + [torch.bfloat16]:
        x = values(dtype, 2)
        close(hvd.allreduce(x, op=hvd.Average), x, rtol=1e-2, atol=0)
    equal(hvd.allreduce(torch.tensor(float(r))), torch.tensor((n - 1) / 2))
    # Equal ints come back as they are, whatever the number of ranks.
    equal(hvd.allreduce(torch.arange(1000)), torch.arange(1000))


@case()
def allreduce_min_max_product():
    n, r = hvd.size(), hvd.rank()
    for dtype in INTS + SMALL + FLOATS + [torch.bfloat16]:
        mine = [values(dtype, 2, seed=k, high=3) for k in range(n)]
        equal(hvd.allreduce(mine[r], op=hvd.Min), torch.stack(mine).amin(0))
        equal(hvd.allreduce(mine[r], op=hvd.Max), torch.stack(mine).amax(0))
        want = mine[0].clone()
        for other in mine[1:]:
            want = want * other
        equal(hvd.allreduce(mine[r], op=hvd.Product), want)


@case()
def small_dtypes_and_bool():
    n, r = hvd.size(), hvd.rank()
    for dtype in SMALL:
        x = torch.arange(10).to(dtype)
        equal(hvd.allreduce(x, op=hvd.Sum), (x * n))
    mine = torch.tensor([r == 0, True, False])
    equal(hvd.allreduce(mine, op=hvd.Max), torch.tensor([True, True, False]))
    equal(hvd.allreduce(mine, op=hvd.Min), torch.tensor([n == 1, True, False]))
    equal(hvd.allreduce(mine, op=hvd.Sum), torch.tensor([True, True, False]))


@case()
def allreduce_in_place():
    n = hvd.size()
    for dtype, dim in itertools.product(INTS + FLOATS, (1, 3)):
        x = values(dtype, dim, high=10)
        y = x.clone()
        assert hvd.allreduce_(y, average=False) is y
        equal(y, x * n)
    assert hvd.allreduce_(torch.IntTensor([1]), None, "positional", hvd.Sum) == n
    weight = torch.nn.Parameter(torch.ones(3))
    version = weight._version
    assert hvd.allreduce_(weight, op=hvd.Sum) is weight
    assert weight._version == version and weight.is_leaf and weight.requires_grad
    equal(weight.detach(), torch.full((3,), float(n)))


@case()
def many_at_once():
    """Asynchronous and fused: nothing is done before the others have submitted theirs."""
    n, tests = hvd.size(), []
    if hvd.rank() > 0:
        hvd.barrier()
    for dtype, dim in itertools.product(INTS + FLOATS, (1, 2, 3)):
        x = values(dtype, dim, high=10)
        tests.append((hvd.allreduce_async(x, average=False), x * n))
    if hvd.rank() == 0:
        assert n == 1 or not any(hvd.poll(handle) for handle, _ in tests)
        hvd.barrier()
    for handle, want in tests:
        equal(hvd.synchronize(handle), want)
        assert hvd.synchronize(handle) is None
    x = torch.ones(5)
    handle = hvd.allreduce_async_(x, op=hvd.Sum)
    assert hvd.synchronize(handle) is x and x[0] == n


@case()
def scale_factors():
    n = hvd.size()
    for dtype in INTS:
        x = torch.tensor([1, 5, -5, 100], dtype=dtype)
        pre = (x.double() * 0.6).trunc().to(dtype) * n
        equal(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.6), pre)
        post = ((x * n).double() * 0.6).trunc().to(dtype)
        equal(hvd.allreduce(x, op=hvd.Sum, postscale_factor=0.6), post)
    for dtype in FLOATS + [torch.bfloat16]:
        x = values(dtype, 2, high=8)
        tolerance = dict(rtol=1e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-6,
                         atol=1e-6)
        close(hvd.allreduce(x, op=hvd.Sum, prescale_factor=0.5), x * 0.5 * n, **tolerance)
        close(hvd.allreduce(x, op=hvd.Average, postscale_factor=3.0), x * 3, **tolerance)
        close(hvd.allreduce(x, op=hvd.Max, prescale_factor=2.0), x * 2, **tolerance)


@case()
def odd_shapes():
    n = hvd.size()
    equal(hvd.allreduce(torch.tensor(2), op=hvd.Sum), torch.tensor(2 * n))
    for shape in ((0,), (3, 0, 2)):
        empty = hvd.allreduce(torch.empty(shape))
        assert empty.shape == shape
        assert hvd.broadcast(torch.empty(shape), 0).shape == shape
    assert hvd.allgather(torch.empty(0, 4)).shape == (0, 4)
    assert hvd.reducescatter(torch.empty(0, 4)).shape == (0, 4)
    assert hvd.alltoall(torch.empty(0, 4)).shape == (0, 4)


@case(1, 2, 3)
def layouts():
    """Dense tensors of any layout: transposed, channels last, strided, expanded."""
    n, r = hvd.size(), hvd.rank()
    base = torch.arange(2 * 3 * 4 * 5, dtype=torch.float32).reshape(2, 3, 4, 5)
    odd = base.to(memory_format=torch.channels_last) if r == 0 else base
    for x, want in ((odd, base), (base.transpose(0, 3), base.transpose(0, 3)),
                    (base[:, ::2], base[:, ::2]),
                    (torch.ones(1).expand(4), torch.ones(4))):
        close(hvd.allreduce(x, op=hvd.Sum), want * n)
        close(hvd.allgather(x), torch.cat([want] * n))
        close(hvd.broadcast(x, 0), want)
    y = odd.clone(memory_format=torch.preserve_format)
    assert hvd.allreduce_(y, op=hvd.Sum) is y
    equal(y, base * n)
    ts = [base.clone().to(memory_format=torch.channels_last), base.t() if base.dim() == 2
          else base.clone()]
    hvd.grouped_allreduce_(ts, op=hvd.Sum)
    for t in ts:
        equal(t, base * n)


@case()
def groups():
    n = hvd.size()
    for dtype in INTS + FLOATS:
        xs = [values(dtype, 2, seed=i, high=10) for i in range(5)]
        for got, x in zip(hvd.grouped_allreduce(xs, average=False), xs):
            equal(got, x * n)
        for got, x in zip(hvd.grouped_allreduce(xs, average=True, name=f"g.{dtype}"), xs):
            close(got, x, rtol=1e-2, atol=0)
        ys = [x.clone() for x in xs]
        result = hvd.grouped_allreduce_(ys, op=hvd.Sum)
        assert isinstance(result, tuple) and all(a is b for a, b in zip(result, ys))
        for y, x in zip(ys, xs):
            equal(y, x * n)
    mixed = [torch.ones(3), torch.ones(2, 2, dtype=torch.int64), torch.tensor(1.5)]
    outputs = hvd.synchronize(hvd.grouped_allreduce_async(mixed, op=hvd.Sum))
    assert isinstance(outputs, tuple) and [o.dtype for o in outputs] == [m.dtype for m in mixed]
    for o, m in zip(outputs, mixed):
        equal(o, m * n)
    gathered = hvd.grouped_allgather([torch.full((2,), i) for i in range(5)])
    for i, g in enumerate(gathered):
        equal(g, torch.full((2 * n,), i))
    scattered = hvd.grouped_reducescatter([torch.ones(4 * n, 2) * i for i in range(5)],
                                          op=hvd.Sum)
    for i, s in enumerate(scattered):
        equal(s, torch.ones(4, 2) * i * n)


@case()
def allgather_dtypes():
    n, r = hvd.size(), hvd.rank()
    for dtype, dim in itertools.product(GATHERED, (1, 2, 3)):
        x = torch.full((17,) * dim, r % 2, dtype=torch.int64).to(dtype)
        got = hvd.allgather(x)
        assert got.dtype == dtype and got.shape == (17 * n, *(17,) * (dim - 1))
        for k in range(n):
            assert bool((got[k * 17:(k + 1) * 17] == (k % 2)).all())


@case()
def allgather_uneven():
    n, r = hvd.size(), hvd.rank()
    rows = [17, 32, 81, 12, 15, 23, 22][:n]
    handles = []
    for dtype, dim in itertools.product(GATHERED, (1, 2, 3)):
        x = torch.full((rows[r],) + (17,) * (dim - 1), r % 2).to(dtype)
        handles.append(hvd.allgather_async(x))
    for handle in handles:
        got = hvd.synchronize(handle)
        assert got.shape[0] == sum(rows)
        for k, part in enumerate(got.split(rows)):
            assert bool((part == (k % 2)).all())
    got = hvd.allgather(torch.ones(0 if r == 0 else 2, 3))
    assert got.shape == (2 * (n - 1), 3)


@case()
def broadcast_from_every_root():
    n, r = hvd.size(), hvd.rank()
    for dtype, root in itertools.product(GATHERED, range(n)):
        x = torch.full((17, 3), r % 2).to(dtype)
        got = hvd.broadcast(x, root_rank=root)
        assert bool((got == (root % 2)).all()) and bool((x == (r % 2)).all())
        assert got.dtype == dtype
        y = x.clone()
        assert hvd.broadcast_(y, root, name=f"in.place.{dtype}.{root}") is y
        equal(y, got)
    assert hvd.broadcast(torch.tensor(r), 0).item() == 0
    weight = torch.nn.Parameter(torch.full((2,), float(r)))
    assert hvd.broadcast_(weight, n - 1) is weight and weight[0] == n - 1


@case()
def sizes_that_change():
    """Under one name, step after step: synchronous, asynchronous, in groups, with other rows."""
    n, r = hvd.size(), hvd.rank()
    for step in range(12):
        rows = [(q * 3 + step // 2) % 5 for q in range(n)]
        want = torch.cat([torch.full((rows[q], 2), 10 * q + step) for q in range(n)])
        mine = torch.full((rows[r], 2), 10 * r + step)
        equal(hvd.allgather(mine, name="sizes.gather"), want)
        equal(hvd.synchronize(hvd.allgather_async(mine, name="sizes.gather")), want)
        for got in hvd.grouped_allgather([mine, mine.bool()], name="sizes.group"):
            equal(got, want.to(got.dtype))
        sent = [[(3 * p + 5 * q + step // 2) % 4 for q in range(n)] for p in range(n)]
        begin = [sum(sent[q][:r]) for q in range(n)]
        mine = torch.arange(sum(sent[r])) + 1000 * r + step
        want = torch.cat([torch.arange(begin[q], begin[q] + sent[q][r]) + 1000 * q + step
                          for q in range(n)])
        for splits in (sent[r], torch.tensor(sent[r]), torch.tensor(sent[r]).int()):
            got, received = hvd.alltoall(mine, splits, name="sizes.trade")
            equal(got, want)
            assert received.dtype == torch.int32
            assert received.tolist() == [sent[q][r] for q in range(n)]
        got = hvd.alltoall(torch.full((n * step, 2), r), name="sizes.trade.evenly")
        equal(got, torch.arange(n).repeat_interleave(step).unsqueeze(1).expand(-1, 2))
    # Sums that cannot be, after all that: refused here, and told to the others.
    if n > 1:
        try:
            hvd.alltoall(torch.arange(3), [9] * n, name="sizes.trade")
            raise AssertionError("sent more rows than there are")
        except (ValueError, hvd.HorovodInternalError):
            pass
        x = hvd.alltoall(torch.arange(n), [1] * n, name="sizes.trade")[0]
        assert x.tolist() == [r] * n
    # An output of its own, which the next operation does not write over.
    kept = [hvd.allgather(torch.full((40000,), float(i)), name="sizes.kept") for i in range(3)]
    assert [float(k[-1]) for k in kept] == [0.0, 1.0, 2.0]
    assert len({k.data_ptr() for k in kept}) == 3


@case()
def alltoall_uneven():
    n, r = hvd.size(), hvd.rank()
    for dtype, dim in itertools.product(GATHERED, (1, 2, 3)):
        # Rank r sends r + 1 rows of value k to each rank k.
        x = torch.cat([torch.full((r + 1,), k % 2) for k in range(n)])
        for _ in range(dim - 1):
            x = x.unsqueeze(-1).expand(*x.shape, 5)
        splits = torch.full((n,), r + 1, dtype=torch.int64 if r else torch.int32)
        got, received = hvd.alltoall(x.contiguous().to(dtype), splits)
        assert got.shape[0] == n * (n + 1) // 2 and bool((got == (r % 2)).all())
        equal(received, torch.arange(1, n + 1, dtype=torch.int32))
    got = hvd.alltoall(torch.arange(2 * n) + 100 * r)
    equal(got, torch.cat([torch.arange(2 * r, 2 * r + 2) + 100 * k for k in range(n)]))
    got, received = hvd.synchronize(hvd.alltoall_async(torch.arange(n)))
    assert received.tolist() == [1] * n
    # Zero rows to others, and rows that are not sent at all.
    splits = [2 if k == r else 0 for k in range(n)]
    got, received = hvd.alltoall(torch.arange(7), splits=splits)
    equal(got, torch.arange(2))
    assert received.tolist() == splits


@case()
def reducescatter_shares():
    n, r = hvd.size(), hvd.rank()
    for dtype in INTS + FLOATS:
        for rows in (n * 4, n * 4 + 1, n - 1 or 1):
            x = (torch.arange(rows * 3).reshape(rows, 3) % 7).to(dtype)
            q, longer = divmod(rows, n)
            first = r * q + min(r, longer)
            want = x[first:first + q + (r < longer)]
            equal(hvd.reducescatter(x, op=hvd.Sum), want * n)
            close(hvd.reducescatter(x), want)
            equal(hvd.synchronize(hvd.reducescatter_async(x, op=hvd.Sum)), want * n)
    x = torch.arange(4.0 * n)
    mine = x[4 * r:4 * r + 4]
    close(hvd.reducescatter(x, op=hvd.Sum, prescale_factor=0.5), mine * 0.5 * n)
    close(hvd.reducescatter(x, op=hvd.Sum, postscale_factor=0.25), mine * 0.25 * n)
    big = torch.ones(n * 3_000_000 // 4)
    close(hvd.reducescatter(big, op=hvd.Sum, prescale_factor=2.0)[:5], torch.full((5,), 2.0 * n))


@case()
def large_tensors():
    """Larger than every chunk and ring on the way, of sizes that divide nothing."""
    n, r = hvd.size(), hvd.rank()
    for count in (1, 1023, 65_537, 3_000_017):
        x = torch.arange(count, dtype=torch.float32) % 1000 + r
        want = (torch.arange(count, dtype=torch.float32) % 1000) * n + n * (n - 1) / 2
        for _ in range(3):
            equal(hvd.allreduce(x, op=hvd.Sum, name=f"large.{count}"), want)
        y = x.clone()
        hvd.broadcast_(y, n - 1)
        equal(y, torch.arange(count, dtype=torch.float32) % 1000 + n - 1)
        assert hvd.allgather(x).shape[0] == n * count


@case(2, 3)
def compression():
    for dtype in (torch.float32, torch.float64):
        for kind in (hvd.Compression.fp16, hvd.Compression.bf16):
            x = torch.arange(10).to(dtype)
            got = hvd.allreduce(x, compression=kind)
            assert got.dtype == dtype
            equal(got, x)
    for dtype in SMALL + INTS:
        x = torch.arange(10).to(dtype)
        packed, ctx = hvd.Compression.fp16.compress(x)
        assert packed.dtype == dtype
        equal(hvd.Compression.fp16.decompress(packed, ctx), x)
    outputs = hvd.grouped_allreduce([torch.ones(3), torch.ones(2)],
                                    compression=hvd.Compression.fp16)
    assert all(o.dtype == torch.float32 for o in outputs)


@case(2, 3)
def sparse():
    """35 tensors in flight at once; different numbers of entries on each rank."""
    n, r = hvd.size(), hvd.rank()
    torch.manual_seed(r)
    waits = []
    for i in range(35):
        dense = torch.randn(17, 5) * (torch.rand(17, 1) < 0.4)
        waits.append((hvd.sparse_allreduce_async(dense.to_sparse(1), f"s.{i}", hvd.Average),
                      hvd.allreduce_async(dense, name=f"d.{i}")))
    for wait, handle in waits:
        close(wait().to_dense(), hvd.synchronize(handle))
    nothing = torch.zeros(4, 2).to_sparse(1)
    close(hvd.sparse_allreduce_async(nothing, "nothing", hvd.Sum)().to_dense(),
          torch.zeros(4, 2))


@case()
def adasum():
    n, r = hvd.size(), hvd.rank()
    x = torch.arange(1.0, 6.0)
    close(hvd.allreduce(x, op=hvd.Adasum), x)                       # parallel: the average
    own = torch.zeros(n * 3)
    own[3 * r:3 * r + 3] = r + 1.0
    want = torch.cat([torch.full((3,), k + 1.0) for k in range(n)])
    close(hvd.allreduce(own, op=hvd.Adasum), want)                  # orthogonal: the sum
    for dtype, scale in ((torch.float32, 1e-30), (torch.float32, 1e15),
                         (torch.float64, 1e-70), (torch.float16, 1.0)):
        y = (x.double() * scale).to(dtype)
        close(hvd.allreduce(y, op=hvd.Adasum), y, rtol=1e-2 if dtype is torch.float16
              else 1e-5, atol=0)
    outputs = hvd.grouped_allreduce([own, x, own[:7 if n > 2 else 2]], op=hvd.Adasum)
    close(outputs[0], want)
    close(outputs[1], x)
    same_on_all_ranks(*outputs)


@case()
def objects():
    n, r = hvd.size(), hvd.rank()
    thing = {"hello": 123, 0: [1, 2], ("a", 1): None}
    for root in range(n):
        got = hvd.broadcast_object(thing if r == root else {}, root_rank=root)
        assert got == thing
    assert hvd.broadcast_object(5 if r == 0 else 7, name="int") == 5
    mine = hvd.broadcast_object(thing if r == 0 else {}, name="mine")
    assert (mine is thing) == (r == 0)
    everybody = hvd.allgather_object({"rank": r, "more": "x" * 100 * r})
    assert [o["rank"] for o in everybody] == list(range(n))
    assert [len(o["more"]) for o in everybody] == [100 * k for k in range(n)]


@case()
def parameters():
    r = hvd.rank()
    torch.manual_seed(r)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    model[1].num_batches_tracked += r
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    same_on_all_ranks(*model.state_dict().values())
    assert model[1].num_batches_tracked == 0
    hvd.broadcast_parameters(list(model.named_parameters()), root_rank=0)
    hvd.broadcast_parameters([torch.ones(2), torch.ones(3)], root_rank=0)
    try:
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        raise AssertionError("a generator was accepted")
    except ValueError:
        pass


@case(1, 2, 4)
def numpy_without_torch():
    import numpy as np

    import horovod.numpy as hnp
    n, r = hnp.size(), hnp.rank()
    for dtype in ("uint8", "int16", "int64", "float16", "float32", "float64"):
        x = np.arange(6, dtype=dtype).reshape(2, 3)
        got = hnp.allreduce(x, op=hnp.Sum)
        assert got.dtype == x.dtype and (got == x * n).all()
    assert (hnp.allgather(np.full((r + 1, 2), r)) ==
            np.concatenate([np.full((k + 1, 2), k) for k in range(n)])).all()
    assert (hnp.broadcast(np.array([r]), 0) == 0).all()
    assert hnp.allreduce(np.float32(r), op=hnp.Sum) == n * (n - 1) / 2
    rows, received = hnp.alltoall(np.arange(n))
    assert (rows == r).all() and received.tolist() == [1] * n
    assert (hnp.reducescatter(np.ones(2 * n), op=hnp.Sum) == n).all()
    assert hnp.allgather(np.array([True])).dtype == np.bool_
    hnp.barrier()


@case(1, 2, 3)
def numpy_in_place_and_beside_other_work():
    import numpy as np

    import horovod.numpy as hnp
    n, r = hnp.size(), hnp.rank()
    total = n * (n + 1) // 2
    x = np.full((2, 3), r + 1.0)
    assert hnp.allreduce_(x, op=hnp.Sum) is x and (x == total).all()
    wide = np.full((4, 6), r + 1.0)
    assert hnp.allreduce_(wide[::2, ::3], op=hnp.Max) is not None
    assert (wide[::2, ::3] == n).all() and wide.sum() == 4 * n + 20 * (r + 1)
    scalar = np.array(r + 1)
    assert hnp.allreduce_(scalar, op=hnp.Sum) is scalar and scalar == total
    handles = [hnp.allreduce_async(np.full(4, r + k), op=hnp.Sum, name=f"np.{k}") for k in range(8)]
    for k in reversed(range(8)):
        assert (hnp.synchronize(handles[k]) == n * (n - 1) // 2 + n * k).all()
    y = np.full(3, r)
    handle = hnp.broadcast_async_(y, n - 1)
    while not hnp.poll(handle):
        pass
    assert hnp.synchronize(handle) is y and (y == n - 1).all()
    try:
        hnp.synchronize(handle)
        raise AssertionError("a handle was taken twice")
    except ValueError:
        pass
    try:
        hnp.allreduce_(np.frombuffer(b"1234", np.uint8))
        raise AssertionError("what cannot be written was written")
    except ValueError as error:
        assert "written" in str(error)


@case(1, 2, 3)
def numpy_groups():
    import numpy as np

    import horovod.numpy as hnp
    n, r = hnp.size(), hnp.rank()
    mine = [np.full(2, r, np.float32), np.full((1, 3), r, np.int64), np.array(r, np.float16)]
    got = hnp.grouped_allreduce(mine, op=hnp.Sum, name="np.group")
    assert [a.dtype for a in got] == [a.dtype for a in mine] and got[2].shape == ()
    assert all((a == n * (n - 1) // 2).all() for a in got) and (mine[0] == r).all()
    assert hnp.grouped_allreduce_(mine, op=hnp.Sum)[0] is mine[0]
    assert all((a == n * (n - 1) // 2).all() for a in mine)
    rows, flags = hnp.grouped_allgather([np.full((r + 1, 2), r), np.array([r == 0])])
    assert rows.shape == (n * (n + 1) // 2, 2) and flags.tolist() == [True] + [False] * (n - 1)
    share, other = hnp.grouped_reducescatter([np.ones((n, 2)), np.ones(2 * n)], op=hnp.Sum)
    assert share.shape == (1, 2) and other.shape == (2,) and (share == n).all()
    try:
        hnp.grouped_allreduce([])
        raise AssertionError("an empty group was accepted")
    except ValueError:
        pass


@case(1, 2, 3)
def numpy_objects_rows_and_join():
    import numpy as np

    import horovod.numpy as hnp
    n, r = hnp.size(), hnp.rank()
    assert hnp.broadcast_object({"rank": r, "x": [1, 2]}) == {"rank": 0, "x": [1, 2]}
    assert hnp.broadcast_object("a" * r, root_rank=n - 1) == "a" * (n - 1)
    assert hnp.allgather_object(("of", r) * r) == [("of", k) * k for k in range(n)]
    rows, received = hnp.alltoall(np.repeat(np.arange(n), 2), splits=[2] * n)
    assert (rows == r).all() and received.tolist() == [2] * n
    for step in range(r + 1):           # rank 0 has the least to do
        hnp.allreduce(np.ones(2), op=hnp.Sum, name="np.uneven")
    assert hnp.join() in range(n)


@case(2, 3)
def numpy_refusals_are_told_to_all():
    import numpy as np

    import horovod.numpy as hnp
    wrong = [np.array(["text"]), np.zeros(2, np.complex64), np.zeros(2, ">f4")]
    for i, array in enumerate(wrong):
        try:
            hnp.allreduce(array, name=f"np.wrong.{i}")
            raise AssertionError("accepted")
        except ValueError as error:
            assert "not supported" in str(error) and "float32" in str(error), error
    try:
        hnp.alltoall(np.zeros(3), splits=[1] * hnp.size(), name="np.splits")
        assert hnp.size() == 3
    except ValueError as error:
        assert "do not add up to 3 rows" in str(error)
    hnp.barrier()


@case(3, env={"HOROVOD_DYNAMIC_PROCESS_SETS": "1"})
def numpy_on_process_sets():
    import numpy as np

    import horovod.numpy as hnp
    ends = hnp.add_process_set([0, 2])
    if ends.included():
        assert hnp.allreduce(np.ones(2), op=hnp.Sum, process_set=ends).tolist() == [2, 2]
        assert hnp.allgather_object(hnp.rank(), process_set=ends) == [0, 2]
        assert hnp.broadcast_object(hnp.rank(), root_rank=2, process_set=ends) == 2
        hnp.barrier(process_set=ends)
    assert hnp.remove_process_set(ends)


@case(2, 3, env={"HOROVOD_CACHE_CAPACITY": "16"})
def more_names_than_the_cache_holds():
    n = hvd.size()
    for _ in range(3):
        for i in range(40):
            shape = (i % 3 + 1,)
            equal(hvd.allreduce(torch.ones(shape), name=f"n.{i}", op=hvd.Sum),
                  torch.full(shape, float(n)))


@case(2, 3)
def names_that_change_shape_and_dtype():
    n = hvd.size()
    for i in range(12):
        x = torch.ones(i % 4 + 1, dtype=[torch.float32, torch.int64][i // 4 % 2])
        equal(hvd.allreduce(x, name="changing", op=hvd.Sum), x * n)


@case(2, 3, 4)
def ranks_in_different_orders():
    import random
    n, r = hvd.size(), hvd.rank()
    names = [f"o.{i}" for i in range(30)]
    for _ in range(3):
        random.Random(r).shuffle(names)
        handles = {name: hvd.allreduce_async(torch.full((4,), float(name[2:])), name=name,
                                             op=hvd.Sum) for name in names}
        for name in reversed(names):
            assert hvd.synchronize(handles[name])[0] == n * float(name[2:])


@case(2, 3)
def many_threads():
    import threading
    n, errors = hvd.size(), []

    def work(k):
        try:
            for i in range(20):
                got = hvd.allreduce(torch.full((8,), float(k)), name=f"t.{k}", op=hvd.Sum)
                assert got[0] == n * k
        except BaseException as e:
            errors.append(e)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors
