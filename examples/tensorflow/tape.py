"""A training loop of one's own with TensorFlow 2.

    horovodrun -np 2 python examples/tensorflow/tape.py
"""
import argparse

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd


def make_digits(rows, seed):
    """Ten fixed 8 x 8 patterns under noise."""
    patterns = np.random.default_rng(1).normal(size=(10, 64))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, rows)
    return (patterns[labels] + 0.7 * rng.normal(size=(rows, 64))).astype(np.float32), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:                            # one process, one GPU
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # Every rank has data of its own.
    dataset = tf.data.Dataset.from_tensor_slices(make_digits(4096, 100 + hvd.rank()))
    dataset = dataset.shuffle(4096).repeat().batch(arguments.batch_size)

    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, activation="relu"),
                              keras.layers.Dense(10)])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.5)
    optimizer.build(model.trainable_variables)

    # All ranks start from the state of rank 0.
    hvd.broadcast_variables(model.variables, root_rank=0)
    hvd.broadcast_variables(optimizer.variables, root_rank=0)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)        # averages the gradients
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    for number, (images, labels) in enumerate(dataset.take(arguments.steps), 1):
        loss = step(images, labels)
        if number % 20 == 0 or number == arguments.steps:
            mean = float(hvd.allreduce(loss, name="loss"))
            if hvd.rank() == 0:
                print(f"step {number:4d}: loss {mean:.3f}", flush=True)

    weights = [w.tobytes() for w in model.get_weights()]
    assert all(other == weights for other in hvd.allgather_object(weights))
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, equal weights", flush=True)


if __name__ == "__main__":
    main()
