"""``model.fit`` of Keras 3 on several processes.

    horovodrun -np 2 python examples/tensorflow/fit.py
"""
import argparse

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd


def make_digits(rows, seed):
    """Ten fixed 8 x 8 patterns under noise."""
    patterns = np.random.default_rng(1).normal(size=(10, 64))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    return (patterns[labels] + 0.7 * rng.normal(size=(rows, 64))).astype(np.float32), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", help="where rank 0 saves the model")
    arguments = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:                            # one process, one GPU
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    images, labels = make_digits(2048, 100 + hvd.rank())        # data of this rank
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"),
                              keras.layers.Dense(10)])

    # The learning rate grows with the number of workers; a warm-up makes that gentle.
    rate = 0.05 * hvd.size()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.5))
    model.compile(optimizer=optimizer, metrics=["accuracy"],
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2),
    ]
    if hvd.rank() == 0 and arguments.checkpoint:
        callbacks.append(keras.callbacks.ModelCheckpoint(arguments.checkpoint))
    history = model.fit(images, labels, batch_size=32, epochs=arguments.epochs,
                        callbacks=callbacks, verbose=0).history
    if hvd.rank() == 0:
        for number, (loss, accuracy) in enumerate(zip(history["loss"], history["accuracy"]), 1):
            print(f"epoch {number}: loss {loss:.3f}, accuracy {accuracy:.2f}", flush=True)


if __name__ == "__main__":
    main()
