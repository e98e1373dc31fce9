"""``model.fit`` with Keras 3: optimizers, callbacks, saving, elastic states."""
import json
import os
import tempfile
import warnings
import zipfile

import keras
import numpy as np
import tensorflow as tf

import horovod.keras
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
from tf_support import case, close, raises, same

ROWS, BATCHES = 4, 6


def data(rank):
    rng = np.random.default_rng(50 + rank)
    return (rng.normal(size=(ROWS * BATCHES, 5)).astype(np.float32),
            rng.normal(size=(ROWS * BATCHES, 2)).astype(np.float32))


def whole():
    """The batches of all ranks together, in order."""
    parts = [data(r) for r in range(hvd.size())]
    return [np.concatenate([p[k].reshape(BATCHES, ROWS, -1) for p in parts], 1)
            .reshape(BATCHES * ROWS * hvd.size(), -1) for k in (0, 1)]


def make_model():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(4, activation="tanh"),
                             keras.layers.Dense(2)])


def fit(optimizer, start, together=False, **options):
    model = make_model()
    model.set_weights(start)
    model.compile(optimizer=optimizer, loss="mse", **options)
    x, y = whole() if together else data(hvd.rank())
    model.fit(x, y, batch_size=ROWS * (hvd.size() if together else 1), epochs=2, shuffle=False,
              verbose=0)
    return model


@case(2, 3)
def fit_trains_like_one_process():
    start = make_model().get_weights()
    for make in (lambda: keras.optimizers.SGD(0.1), lambda: keras.optimizers.Adam(0.01),
                 lambda: keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.1),
                 lambda: keras.optimizers.AdamW(0.01, use_ema=True),
                 lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)):
        model = fit(hvd_keras.DistributedOptimizer(make()), start)
        same(model.variables + list(model.optimizer.variables))
        for a, b in zip(model.get_weights(), fit(make(), start, True).get_weights()):
            close(a, b, str(make().get_config()), 1e-3, 1e-5)


@case(2)
def fit_sums_up_several_passes():
    start = make_model().get_weights()
    for average in False, True:
        optimizer = hvd_keras.DistributedOptimizer(
            keras.optimizers.SGD(0.1), backward_passes_per_step=3,
            average_aggregated_gradients=average)
        model = fit(optimizer, start)
        same(model.variables)
        assert int(optimizer.iterations) == 2 * BATCHES
        rate = 0.1 / 3 if average else 0.1
        found = model.get_weights()
        model = make_model()
        model.set_weights(start)
        parts = [np.stack([data(r)[k].reshape(BATCHES, ROWS, -1) for r in range(hvd.size())])
                 for k in (0, 1)]
        for step in range(0, 2 * BATCHES, 3):
            with tf.GradientTape() as tape:
                losses = [tf.reduce_mean((model(parts[0][r, (step + k) % BATCHES]) -
                                          parts[1][r, (step + k) % BATCHES]) ** 2)
                          for r in range(hvd.size()) for k in range(3)]
                loss = tf.add_n(losses) / hvd.size()
            for v, g in zip(model.trainable_variables,
                            tape.gradient(loss, model.trainable_variables)):
                v.assign_sub(rate * g)
        for a, b in zip(found, model.get_weights()):
            close(a, b, str(average), 1e-3, 1e-5)


@case(2)
def fit_with_half_precision_and_steps_per_execution():
    start = make_model().get_weights()
    model = fit(hvd_keras.DistributedOptimizer("sgd"), start, steps_per_execution=3)
    for a, b in zip(model.get_weights(), fit("sgd", start, True).get_weights()):
        close(a, b, "", 1e-3, 1e-5)
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = fit(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), start)
    finally:
        keras.config.set_dtype_policy("float32")
    assert type(model.optimizer).__name__ == "LossScaleOptimizer"
    same(model.variables + list(model.optimizer.variables))
    outer = hvd_keras.DistributedOptimizer(
        keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=4.0))
    same(fit(outer, start).variables)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = fit(hvd_keras.DistributedOptimizer("sgd"), start, jit_compile=True)
    assert [w for w in seen if "jit_compile" in str(w.message)] and not model.jit_compile


@case(2)
def distributed_optimizers():
    inner = keras.optimizers.Adam(0.02)
    model = make_model()
    inner.build(model.trainable_variables)
    inner.apply([tf.ones(v.shape) for v in model.trainable_variables])
    optimizer = hvd_keras.DistributedOptimizer(inner)
    assert type(optimizer).__module__ == "horovod._keras"
    assert type(optimizer).__name__ == "Adam" and isinstance(optimizer, keras.optimizers.Adam)
    assert len(optimizer.variables) == len(optimizer.variables()) == len(inner.variables)
    for a, b in zip(optimizer.variables, inner.variables):
        close(a, b)
    config = keras.optimizers.serialize(optimizer)
    assert config["class_name"] == "Adam" and "horovod" not in json.dumps(config)
    assert type(keras.optimizers.Adam.from_config(optimizer.get_config())) is \
        keras.optimizers.Adam
    for op in hvd.Adasum, hvd.Min:
        raises(ValueError, hvd_keras.DistributedOptimizer, inner, op=op)
    raises(ValueError, hvd.DistributedOptimizer, inner, op=hvd.Adasum)
    raises(ValueError, hvd_keras.DistributedOptimizer, optimizer)
    raises(NotImplementedError, optimizer.stateless_apply, [], [], [])
    summed = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), op=hvd.Sum)
    variable = keras.Variable(np.zeros(2, np.float32))
    summed.apply([tf.ones(2)], [variable])
    close(variable, [-2.0, -2.0])
    assert horovod.keras.DistributedOptimizer is hvd_keras.DistributedOptimizer


@case(2)
def partial_optimizers_leave_layers_alone():
    keras.utils.set_random_seed(hvd.rank())
    model = make_model()
    local = model.layers[0]
    hvd.broadcast_variables(model.variables, 0)
    model.compile(optimizer=hvd_keras.PartialDistributedOptimizer(
        keras.optimizers.SGD(0.1), local_layers=local), loss="mse")
    model.fit(*data(hvd.rank()), batch_size=ROWS, verbose=0, callbacks=[
        hvd_keras.callbacks.BroadcastGlobalVariablesCallback(
            0, local_variables=local.variables)])
    same(model.layers[1].variables)
    kernels = hvd.allgather_object(local.kernel.numpy().tobytes())
    assert kernels[0] != kernels[1]
    raises(ValueError, hvd_keras.callbacks.BroadcastGlobalVariablesCallback, 0,
           local_variables=[3])


class Watch(keras.callbacks.Callback):
    """The learning rate of every batch, and this rank's loss."""

    def on_train_begin(self, logs=None):
        self.rates, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["loss"])


@case(2)
def callbacks():
    callbacks = hvd_keras.callbacks
    keras.utils.set_random_seed(1 + hvd.rank())
    model = make_model()
    model.compile(optimizer=hvd_keras.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.5)), loss="mse")
    watch = Watch()
    history = model.fit(*data(hvd.rank()), batch_size=ROWS, epochs=4, verbose=0, callbacks=[
        watch, callbacks.BroadcastGlobalVariablesCallback(0), callbacks.MetricAverageCallback(),
        callbacks.LearningRateWarmupCallback(0.1, warmup_epochs=2, verbose=1),
        callbacks.LearningRateScheduleCallback(0.1, lambda e: 0.5, start_epoch=2, end_epoch=3),
        callbacks.LearningRateScheduleCallback(0.1, 0.1, start_epoch=3)]).history
    same(model.variables + list(model.optimizer.variables))
    close(history["loss"], np.mean(hvd.allgather_object(watch.losses), 0))
    steps = (np.arange(2 * BATCHES) + 1) / BATCHES
    close(watch.rates[:2 * BATCHES], 0.05 * (steps / 2 + 1))
    close(watch.rates[2 * BATCHES::BATCHES], [0.05, 0.1])
    close(history["lr"], watch.rates[BATCHES - 1::BATCHES])
    assert callbacks.BestModelCheckpoint().save_best_only
    plain = make_model()
    plain.compile(optimizer="sgd", loss="mse")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        plain.fit(*data(hvd.rank()), verbose=0,
                  callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
        plain.fit(*data(hvd.rank()), batch_size=ROWS, verbose=0,
                  callbacks=[callbacks.BroadcastGlobalVariablesCallback(0)])
    assert [w for w in seen if "weights of the ranks differ" in str(w.message)]


@case(2)
def models_are_saved_and_loaded():
    model = fit(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)),
                make_model().get_weights())
    folder = hvd.broadcast_object(tempfile.mkdtemp() if hvd.rank() == 0 else None)
    path = os.path.join(folder, "model.keras")
    if hvd.rank() == 0:
        model.save(path)
        model.export(os.path.join(folder, "saved"), verbose=False)
    hvd.broadcast_object("saved")
    assert b"horovod" not in zipfile.ZipFile(path).read("config.json").lower()
    plain, loaded = keras.models.load_model(path), hvd_keras.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.Adam
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    for other in plain, loaded:
        for a, b in zip(other.optimizer.variables, model.optimizer.variables):
            close(a, b)
    loaded.fit(*data(hvd.rank()), batch_size=ROWS, verbose=0)
    same(loaded.variables)
    served = tf.saved_model.load(os.path.join(folder, "saved"))
    close(served.serve(tf.ones((1, 5))), model(tf.ones((1, 5))), rtol=1e-4)
    raises(ValueError, hvd_keras.load_model, path, legacy_opts=True)


@case(2)
def elastic_states():
    me = hvd.rank()
    model = make_model()
    model.compile(optimizer=hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)),
                  loss="mse")
    if me == 0:                         # a rank that comes later has no slots yet
        model.optimizer.build(model.trainable_variables)
    state = hvd_keras.elastic.KerasState(model, epoch=me, batch=3 * me)
    state.sync()
    assert (state.epoch, state.batch) == (0, 0) and model.optimizer.built
    same(model.variables + list(model.optimizer.variables))
    elastic = hvd_keras.elastic
    model.fit(*data(me), batch_size=ROWS, epochs=2, verbose=0, callbacks=[
        elastic.UpdateEpochStateCallback(state), elastic.UpdateBatchStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=2)])
    assert (state.epoch, state.batch) == (2, 0)
    weights = model.get_weights()
    model.set_weights([0 * w for w in weights])
    model.optimizer.iterations.assign(99)
    state.restore()
    for a, b in zip(model.get_weights(), weights):
        close(a, b)
    assert int(model.optimizer.iterations) == 2 * BATCHES
    variables = [tf.Variable([float(me)])]
    state = hvd.elastic.TensorFlowState(variables, batch=me)
    for _ in range(2):                  # every sync broadcasts
        variables[0].assign([float(me)])
        state.sync()
        close(variables[0], [0.0])
