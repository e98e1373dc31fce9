"""Training with tapes and optimizers equals training by one process on all batches."""
import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from tf_support import WAYS, case, close, compiled, raises, same

STEPS, ROWS, WORDS = 4, 6, 10


def batches(rank):
    rng = np.random.default_rng(100 + rank)
    for _ in range(STEPS):
        yield (tf.constant(rng.integers(0, WORDS, (ROWS, 3))),
               tf.constant(rng.normal(size=(ROWS, 2)).astype(np.float32)))


def make_model(embedding):
    first = [keras.Input((3,), dtype="int64"), keras.layers.Embedding(WORDS, 4)] if embedding \
        else [keras.Input((3, WORDS))]
    return keras.Sequential([*first, keras.layers.Flatten(),
                             keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(2)])


def loss_of(model, x, y):
    x = x if len(model.trainable_variables) == 5 else tf.one_hot(x, WORDS)
    return tf.reduce_mean((model(x, training=True) - y) ** 2)


def train(way, optimizer, embedding, start, wrap):
    """The weights after one pass; ``wrap`` makes the tape of a step."""
    model = make_model(embedding)
    model.set_weights(start)
    optimizer.build(model.trainable_variables)

    @way
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(model, x, y)
        gradients = wrap(tape).gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    for x, y in batches(hvd.rank()):
        step(x, y)
    same(model.variables)
    return model.get_weights()


def train_alone(optimizer, embedding, start):
    model = make_model(embedding)
    model.set_weights(start)
    for parts in zip(*map(batches, range(hvd.size()))):
        with tf.GradientTape() as tape:
            loss = tf.add_n([loss_of(model, x, y) for x, y in parts]) / hvd.size()
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables),
                                      model.trainable_variables))
    return model.get_weights()


OPTIMIZERS = [lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.SGD(0.1, momentum=0.9),
              lambda: keras.optimizers.Adam(0.01),
              lambda: keras.optimizers.SGD(0.1, clipnorm=0.05)]


@case(2, 3)
def tapes_train_like_one_process():
    for embedding in False, True:
        start = make_model(embedding).get_weights()
        for make in OPTIMIZERS:
            alone = train_alone(make(), embedding, start)
            for way in WAYS:
                found = train(way, make(), embedding, start, hvd.DistributedGradientTape)
                for a, b in zip(found, alone):
                    close(a, b, f"{make().get_config()} {embedding}", 1e-4, 1e-5)


@case(2)
def options_of_a_tape():
    start = make_model(True).get_weights()
    alone = train_alone(keras.optimizers.SGD(0.1), True, start)
    for options, tolerance in [
        (dict(sparse_as_dense=True), 1e-5), (dict(gradient_predivide_factor=2.0,
                                                  sparse_as_dense=True), 1e-5),
        (dict(compression=hvd.Compression.fp16), 1e-2), (dict(groups=2), 1e-5),
        (dict(num_groups=2, device_dense="/CPU:0", device_sparse="/CPU:0"), 1e-5),
        (dict(compression=hvd.Compression.bf16), 3e-2)]:
        found = train(compiled, keras.optimizers.SGD(0.1), True, start,
                      lambda tape: hvd.DistributedGradientTape(tape, **options))
        for a, b in zip(found, alone):
            close(a, b, str(options), tolerance, tolerance)
    for options in dict(groups=0), dict(groups=-1), dict(groups=[1]), \
            dict(op=hvd.Sum, gradient_predivide_factor=2.0):
        raises(ValueError, hvd.DistributedGradientTape, tf.GradientTape(), **options)


@case(2)
def tapes_keep_structure_and_class():
    a, b, unused = tf.Variable(1.0), tf.Variable([2.0]), tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = (a + tf.reduce_sum(b)) * (hvd.rank() + 1.0)
    wrapped = hvd.DistributedGradientTape(tape)
    assert type(wrapped).__name__ == "GradientTape" and isinstance(wrapped, tf.GradientTape)
    found = wrapped.gradient(loss, {"a": a, "rest": [b, unused]})
    close(found["a"], 1.5)
    close(found["rest"][0], [1.5])
    assert found["rest"][1] is None
    close(wrapped.gradient(loss, a), 1.5)
    close(wrapped.gradient(loss, [a], use_generic_names=True)[0], 1.5)
    assert [g is None for g in wrapped.gradient(loss, (unused, a))] == [True, False]
    by_list = hvd.DistributedGradientTape(tape, groups=[[b, unused], [unused]])
    close(by_list.gradient(loss, [a, b])[1], [1.5])


@case(2)
def local_sources_are_not_reduced():
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    with tf.GradientTape(persistent=True) as tape:
        loss = (a + b) * (hvd.rank() + 1.0)
    for scale in True, False:
        wrapped = hvd.DistributedGradientTape(tape, scale_local_gradients=scale)
        wrapped.register_local_source(b)
        close(wrapped.gradient(loss, [a, b]),
              [1.5, (hvd.rank() + 1.0) / (hvd.size() if scale else 1)])
        local, shared = wrapped.get_local_and_global_gradients(loss, [a, b])
        assert local[0][0] is b and shared[0][0] is a
    layers = [keras.layers.Dense(1), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((1,)), *layers])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((1, 1)))) * (hvd.rank() + 1.0)
    tape = hvd.PartialDistributedGradientTape(tape, local_layers=layers[1])
    bias = tape.gradient(loss, [layers[1].bias])[0]
    close(bias, [(hvd.rank() + 1.0) / hvd.size()])
    raises(ValueError, hvd.PartialDistributedGradientTape, tf.GradientTape(), local_layers=[3])


@case(2)
def two_models_in_one_function():
    """Both reductions are in flight at once, with variables of equal names and places."""
    models = [keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)]) for _ in range(2)]
    if hvd.rank() == 1:
        keras.layers.Dense(3).build((None, 2))      # Keras counts on, on this rank alone
    more = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

    @compiled
    def step(x):
        gradients = []
        for model in models + [more]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x)) * (hvd.rank() + 1.0)
            gradients.append(hvd.DistributedGradientTape(tape).gradient(
                loss, model.trainable_variables))
        return gradients
    for found in step(tf.ones((1, 2))):
        close(found[1], [1.5] * 3)


@case(2)
def broadcasts_and_objects():
    me = hvd.rank()
    for way in WAYS:
        variables = [tf.Variable([me]), tf.Variable(float(me)), tf.Variable([[True, me == 1]])]
        way(lambda: hvd.broadcast_variables(variables, root_rank=1))()
        assert [v.numpy().tolist() for v in variables] == [[1], 1.0, [[True, True]]]
        way(lambda: [hvd.broadcast_(variables[:1], 0), variables[0].assign_add([5])])()
        assert variables[0].numpy().tolist() == [6]
        variables[0].assign([me])
        way(lambda: hvd.broadcast_variables(variables, root_rank=1, inplace=True))()
        assert variables[0].numpy().tolist() == [1]
    hvd.broadcast_variables([], root_rank=0)
    assert hvd.broadcast_object_fn(1)({me: 1}) == {1: 1}
    assert hvd.allgather_object(list(range(me))) == [[], [0]]
    assert "broadcast_variables" in str(raises(RuntimeError, hvd.broadcast_global_variables, 0))
    refs = hvd.vars_to_refs([variables[0]])
    assert hvd.refs_to_vars(refs)[0] is variables[0]


@case(2)
def optimizers_of_tensorflow_1():
    def run(**options):
        variable = tf.Variable([1.0, 2.0])
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1),
                                             **options)
        for _ in range(2):
            pairs = optimizer.compute_gradients(
                lambda: tf.reduce_sum(variable) * (hvd.rank() + 1.0), [variable])
            optimizer.apply_gradients(pairs)
        return variable
    close(run(), [0.7, 1.7])
    close(run(op=hvd.Sum), [0.4, 1.4])
    close(run(backward_passes_per_step=2), [0.7, 1.7])
    close(run(backward_passes_per_step=2, average_aggregated_gradients=True), [0.85, 1.85])
    graph = tf.Graph()
    with graph.as_default():
        variable = tf.compat.v1.get_variable("v", initializer=float(hvd.rank()))
        hook = hvd.BroadcastGlobalVariablesHook(1)
        with tf.compat.v1.train.SingularMonitoredSession(hooks=[hook]) as session:
            assert session.run(variable) == 1.0


@case(2, 3)
def batch_norm_of_all_batches():
    me = hvd.rank()
    rng = np.random.default_rng(3)
    rows = [rng.normal(100.0, 2.0, (2 + 2 * r, 3)).astype(np.float32) for r in range(hvd.size())]
    for way in WAYS:
        alone, synced = keras.layers.BatchNormalization(), hvd.SyncBatchNormalization()

        def gradient(layer, x, weight):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(layer(x, training=True) ** 3) * weight
            return tape.gradient(loss, x)
        alone.build((None, 3)), synced.build((None, 3))
        whole = tf.constant(np.concatenate(rows))
        expected = alone(whole, training=True)
        first = sum(len(r) for r in rows[:me])
        mine = slice(first, first + len(rows[me]))
        found = way(lambda x: synced(x, training=True))(tf.constant(rows[me]))
        close(found, expected[mine], rtol=1e-3, atol=1e-4)
        close(synced.moving_mean, alone.moving_mean)
        close(synced.moving_variance, alone.moving_variance, rtol=1e-4)
        wanted = gradient(alone, whole, 1.0)[mine]
        close(way(lambda x: gradient(synced, x, 1.0))(tf.constant(rows[me])), wanted, rtol=1e-2,
              atol=1e-3)
    raises(ValueError, hvd.SyncBatchNormalization, fused=True)
    assert hvd.SyncBatchNormalization().name.startswith("sync_batch_normalization")
