"""Operations: types, shapes, eager and in functions, process sets, gradients, names."""
import threading

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.tensorflow import mpi_ops
from tf_support import WAYS, case, close, compiled, eager, raises

REDUCED = [tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32,
           tf.float64]
MOVED = REDUCED + [tf.uint16, tf.int16, tf.bool]
SHAPES = [(5,), (3, 2), (2, 3, 2)]


def numbers(shape, dtype, rank):
    """Small whole numbers that differ from rank to rank."""
    values = np.arange(int(np.prod(shape))).reshape(shape) % 3 + rank + 1
    return tf.cast(tf.constant(values), dtype)


def value(tensor):
    return tf.cast(tensor, tf.float64).numpy()


@case(2, 3, 4)
def types_shapes_and_reductions():
    """One function per way computes them all, so that it is traced once."""
    ranks = range(hvd.size())

    def run(inputs):
        return {key: hvd.allreduce(x, op=key[2]) for key, x in inputs.items()}
    inputs = {(dtype.name, len(shape), op): numbers(shape, dtype, hvd.rank())
              for dtype in REDUCED for shape in SHAPES for op in (hvd.Sum, hvd.Min, hvd.Max)}
    inputs.update({(d.name, 1, hvd.Product): numbers((5,), d, hvd.rank())
                   for d in (tf.int32, tf.float32, tf.bfloat16)})
    inputs.update({(d.name, 2, hvd.Average): numbers((3, 2), d, hvd.rank())
                   for d in (tf.float16, tf.bfloat16, tf.float32, tf.float64)})
    functions = {hvd.Sum: np.sum, hvd.Min: np.min, hvd.Max: np.max, hvd.Product: np.prod,
                 hvd.Average: np.mean}
    for way in WAYS:
        results = way(run)(inputs)
        for (name, ndim, op), result in results.items():
            every = np.stack([value(numbers(SHAPES[ndim - 1], tf.as_dtype(name), r))
                              for r in ranks])
            assert result.dtype.name == name and result.shape == SHAPES[ndim - 1]
            close(value(result), functions[op](every, axis=0), f"{way.__name__} {name} {op}",
                  rtol=1e-2 if name in ("float16", "bfloat16") else 1e-6)


@case(2, 3, 4)
def every_type_can_be_moved():
    me, size = hvd.rank(), hvd.size()

    inputs = [numbers((me + 1, 2), d, me) if d != tf.bool else tf.fill((me + 1, 2), me > 0)
              for d in MOVED]
    fixed = [numbers((3,), d, me) if d != tf.bool else tf.fill((3,), me > 0) for d in MOVED]
    for way in WAYS:
        for x, gathered in zip(inputs, way(lambda t: [hvd.allgather(x) for x in t])(inputs)):
            assert gathered.dtype == x.dtype and gathered.shape[0] == size * (size + 1) // 2
            close(value(gathered[:1]), value(numbers((1, 2), x.dtype, 0))
                  if x.dtype != tf.bool else np.zeros((1, 2)))
        for x, root in zip(fixed, way(lambda t: [hvd.broadcast(x, size - 1) for x in t])(fixed)):
            expected = numbers((3,), x.dtype, size - 1) if x.dtype != tf.bool else tf.ones(3)
            close(value(root), value(expected))


@case(2, 3)
def alltoall_and_reducescatter():
    me, size = hvd.rank(), hvd.size()
    rows = tf.reshape(tf.range(2.0 * (2 * size + 1)), (2 * size + 1, 2)) * (me + 1)
    splits = [(me + k) % 2 for k in range(size)]
    sent = tf.fill((sum(splits), 2), float(me))
    for way in WAYS:
        got, counts = way(lambda: hvd.alltoall(sent, splits))()
        assert counts.numpy().tolist() == [(r + me) % 2 for r in range(size)]
        close(got[:, 0], [r for r in range(size) for _ in range((r + me) % 2)])
        share = way(lambda: hvd.reducescatter(rows, op=hvd.Sum))()
        whole = way(lambda: hvd.allgather(share))()
        close(whole, rows / (me + 1) * sum(range(1, size + 1)))
        pair = way(lambda: hvd.grouped_reducescatter([rows, tf.cast(rows, tf.float64)]))()
        close(pair[0] * size, share)
        assert pair[1].dtype == tf.float64
        scaled = way(lambda: hvd.reducescatter(rows, op=hvd.Sum, prescale_factor=0.5,
                                               postscale_factor=4.0))()
        close(scaled, 2 * share)


@case(2)
def groups_and_slices():
    me, size = hvd.rank(), hvd.size()
    dense = tf.constant([1.0, 2.0]) * (me + 1)
    slices = tf.IndexedSlices(tf.fill((me + 1, 2), me + 1.0), tf.range(me + 1),
                              tf.constant([4, 2]))
    for way in WAYS:
        assert way(lambda: hvd.grouped_allreduce([]))() == []
        first, middle, last = way(lambda: hvd.grouped_allreduce(
            [slices, dense, slices], op=hvd.Sum))()
        close(middle, [3.0, 6.0])
        for found in first, last:
            assert found.values.shape[0] == 3 and found.dense_shape.numpy().tolist() == [4, 2]
            close(tf.convert_to_tensor(found)[:2, 0], [3.0, 2.0])
        close(tf.convert_to_tensor(way(lambda: hvd.allreduce(slices))())[:2, 0],
              [3.0 / size, 2.0 / size])
        for options in dict(op=hvd.Min), dict(op=hvd.Adasum), dict(prescale_factor=2.0):
            raises(NotImplementedError, way(lambda: hvd.allreduce(slices, **options)))
        total = way(lambda: hvd.allreduce(tf.constant(1 / 3, tf.float64), op=hvd.Sum,
                                          prescale_factor=1 / 3))()
        assert abs(float(total) - 2 / 9) < 1e-15, "scale factors are doubles"


@case(2, 3)
def gradients():
    me, size = hvd.rank(), hvd.size()

    def gradient(function):
        x = tf.ones((size, 2)) * (me + 1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nest.flatten(function(x))
            loss = tf.add_n([tf.reduce_sum(t) for t in y]) * (me + 1.0)
        return tape.gradient(loss, x)
    total, mean = size * (size + 1) / 2, (size + 1) / 2
    for way in WAYS:
        for expected, function in [
            (total, lambda x: hvd.allreduce(x, op=hvd.Sum)),
            (mean, hvd.allreduce),
            (6 * total, lambda x: hvd.grouped_allreduce(
                [x, 2.0 * x], op=hvd.Sum, prescale_factor=2.0)),
            (mean, hvd.allgather),
            (2 * mean, lambda x: hvd.grouped_allgather([x, x])),
            (mean if me == 0 else 0, lambda x: hvd.broadcast(x, 0)),
            (mean if me == 0 else 0, lambda x: tf.convert_to_tensor(
                [hvd.broadcast(x, 0, ignore_name_scope=True)])),
        ]:
            close(way(lambda: gradient(function))(), np.full((size, 2), expected))
        rows = np.arange(1.0, size + 1)[:, None] * np.ones(2)
        close(way(lambda: gradient(hvd.alltoall))(), rows)
        close(way(lambda: gradient(hvd.reducescatter))(), rows)
        close(way(lambda: gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum)))(), size * rows)
        raises((NotImplementedError, LookupError),
               way(lambda: gradient(lambda x: hvd.allreduce(x, op=hvd.Max))))


@case(3)
def sets():
    pair = hvd.add_process_set([0, 2])
    me = hvd.rank()
    for way in WAYS:
        included = way(lambda: hvd.process_set_included_op(pair.process_set_id))()
        assert int(included) == (me != 1)
        if me == 1:
            e = raises(tf.errors.InvalidArgumentError,
                       way(lambda: hvd.allreduce(tf.ones(2), process_set=pair)))
            assert "not a member" in str(e)
            continue
        close(way(lambda: hvd.allreduce(tf.ones(2) * me, process_set=pair))(), [1.0, 1.0])
        close(way(lambda: hvd.allgather(tf.fill((1,), me), process_set=pair))(), [0, 2])
        close(way(lambda: hvd.broadcast(tf.ones(1) * me, 2, process_set=pair))(), [2.0])
    variable = tf.Variable([me + 1.0])
    table = tf.Variable(tf.ones((3, 1)))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable) * (me + 1.0) + tf.reduce_sum(tf.gather(table, [me]))
    tape = hvd.DistributedGradientTape(tape, process_set=pair)
    dense, sparse = tape.gradient(loss, [variable, table])
    close(dense, [2.0])
    close(tf.convert_to_tensor(sparse)[:, 0], [0, 1, 0] if me == 1 else [0.5, 0, 0.5])
    assert hvd.remove_process_set(pair)


@case(2)
def order_does_not_matter():
    """Independent operations issued in opposite order, with one thread for all of them."""
    indices = range(16) if hvd.rank() == 0 else range(15, -1, -1)
    order = list(indices)

    @compiled
    def all_at_once(x):
        made = {i: hvd.allreduce(x + i, op=hvd.Sum, name=f"independent_{i}") for i in order}
        return [made[i] for i in range(16)]
    for _ in range(20):
        close(all_at_once(tf.zeros(2)), [[2.0 * i] * 2 for i in range(16)])


@case(2)
def nothing_is_folded_merged_or_dropped():
    """Rank 0 uses what rank 1 ignores; constants and twins are executed every time."""
    def run(twins):
        first = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum)
        second = hvd.allreduce(tf.constant([1.0]), op=hvd.Sum)
        ignored = hvd.allreduce(twins, op=hvd.Sum)
        return first, second, ignored if hvd.rank() == 0 else twins
    before = hvd.stats()["operations"]["allreduce"]["count"] if "operations" in hvd.stats() \
        else None
    function = compiled(run)
    for i in range(5):
        first, second, third = function(tf.fill((1,), float(i)))
        close([first, second], [[2.0], [2.0]])
        close(third, [2.0 * i if hvd.rank() == 0 else i])
    if before is not None:
        assert hvd.stats()["operations"]["allreduce"]["count"] - before == 15


@case(2)
def loops_and_nested_functions():
    @tf.function(autograph=False)
    def inner(x):
        return hvd.allreduce(x, op=hvd.Sum)

    @tf.function(autograph=False)
    def outer(a, b):
        return inner(a) + 10 * inner(b)
    close(outer(tf.constant([1.0]), tf.constant([2.0])), [42.0])
    variable = tf.Variable([1.0])

    @tf.function(autograph=False)
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(variable * x)
        return hvd.DistributedGradientTape(tape).gradient(loss, variable)

    @tf.function(autograph=False)
    def twice(a, b):
        return gradient(a) + 10 * gradient(b)
    close(twice(tf.constant([1.0]), tf.constant([2.0])), [21.0])

    @tf.function(autograph=False)
    def loop(x):
        return tf.while_loop(lambda i, x: i < 6,
                             lambda i, x: (i + 1, hvd.allreduce(x, op=hvd.Sum)), (0, x))[1]
    close(loop(tf.ones(2)), [64.0, 64.0])

    @tf.function(autograph=False)
    def each(rows):
        return tf.map_fn(lambda row: hvd.allreduce(row, op=hvd.Sum), rows,
                         parallel_iterations=8)
    rows = tf.reshape(tf.range(40.0), (20, 2))
    close(each(rows), 2 * rows)


@case(2)
def traces_need_not_be_equal():
    """One rank has traced a function more often than the other."""
    function = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum), autograph=False)
    close(function(tf.ones(2)), [2.0, 2.0])
    if hvd.rank() == 0:
        function.get_concrete_function(tf.TensorSpec((5,)))
        tf.Graph().as_default()
    close(function(tf.ones(3)), [2.0] * 3)


@case(2)
def joins():
    if hvd.rank() == 0:
        close(hvd.allreduce(tf.ones(2), op=hvd.Sum), [1.0, 1.0])
    last = int(hvd.join())
    assert last in (0, 1)
    assert set(hvd.allgather_object(last)) == {last}


@case(2)
def threads_run_while_an_operation_waits():
    """Python goes on in its other threads."""
    ticks, event = [], threading.Event()

    def tick():
        while not event.wait(0.01):
            ticks.append(1)
    thread = threading.Thread(target=tick)
    thread.start()
    if hvd.rank() == 1:
        while len(ticks) < 20:
            event.wait(0.01)
    hvd.allreduce(tf.ones(1), name="late")
    event.set()
    thread.join()
    assert len(ticks) >= 5


@case(2)
def blocking_kernels_give_the_same():
    """The way for a TensorFlow whose completions cannot be kept."""
    import ctypes
    from horovod.tensorflow import _library
    block = ctypes.CDLL(_library.PATH).horovod_tensorflow_block
    block(True)
    try:
        for way in eager, compiled:
            close(way(lambda: hvd.allreduce(tf.ones(3) * (hvd.rank() + 1.0)))(), [1.5] * 3)
            close(way(lambda: hvd.allgather(tf.fill((1,), hvd.rank())))(), [0, 1])
            raises(tf.errors.FailedPreconditionError,
                   way(lambda: hvd.allreduce(tf.ones(2 + hvd.rank()), name="bad")))
    finally:
        block(False)


@case(2)
def many_operations_at_once():
    """A thousand in flight, twice."""
    @compiled
    def thousand(x):
        made = [mpi_ops._grouped_allreduce([x + float(i)], None, hvd.Sum,
                                           wire=[f"many.{i}"])[0] for i in range(1000)]
        return tf.stack(made)
    for _ in range(2):
        close(thousand(tf.zeros(3))[:, 0], 2.0 * np.arange(1000))
