"""``model.fit`` that goes on when workers are lost, or more of them come.

    horovodrun -np 2 --min-np 1 python examples/tensorflow/elastic.py
"""
import argparse

import keras
import numpy as np

import horovod.tensorflow.keras as hvd


def make_digits(rows, seed):
    """Ten fixed 8 x 8 patterns under noise."""
    patterns = np.random.default_rng(1).normal(size=(10, 64))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    return (patterns[labels] + 0.7 * rng.normal(size=(rows, 64))).astype(np.float32), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    hvd.init()
    rate = 0.05
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"),
                              keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate * hvd.size()))
    model.compile(optimizer=optimizer,
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)

    # What must not be lost: model, optimizer, and how far we are.
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    state.register_reset_callbacks([
        lambda: setattr(optimizer, "learning_rate", rate * hvd.size())])

    @hvd.elastic.run
    def train(state):
        images, labels = make_digits(1024, 100 + hvd.rank())
        model.fit(images, labels, batch_size=32, epochs=arguments.epochs - state.epoch,
                  verbose=0, callbacks=[
                      hvd.elastic.UpdateBatchStateCallback(state),
                      hvd.elastic.UpdateEpochStateCallback(state),
                      hvd.elastic.CommitStateCallback(state, batches_per_commit=8)])
        return float(model.evaluate(images, labels, verbose=0))

    loss = train(state)
    if hvd.rank() == 0:
        print(f"{state.epoch} epochs, {hvd.size()} ranks: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
