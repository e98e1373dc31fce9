"""What the cases of TensorFlow share.  A case is a function that every rank of a job runs, in
processes that have run other cases before:

    @case(2, 3)
    def sums_are_exact(): ...
"""
import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras                            # noqa: E402
import numpy as np                      # noqa: E402
import tensorflow as tf                 # noqa: E402

import horovod.tensorflow as hvd        # noqa: E402

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)     # what must not matter
tf.get_logger().setLevel("ERROR")


def case(*sizes):                       # read by test_tensorflow_cases.py
    def decorate(function):
        @functools.wraps(function)
        def wrapper():
            hvd.init(process_sets="dynamic")
            keras.utils.set_random_seed(7)
            function()
            hvd.allgather_object("done")
            hvd.shutdown()
        return wrapper
    return decorate


def eager(function):
    return function


def compiled(function):
    return tf.function(function, autograph=False)


WAYS = eager, compiled


def raises(kind, call, *args, **kwargs):
    """The exception that the call raises."""
    try:
        call(*args, **kwargs)
    except kind as e:
        return e
    raise AssertionError(f"did not raise {kind}")


def close(found, expected, words="", rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(expected, np.float64),
                               rtol=rtol, atol=atol, err_msg=words)


def same(variables):
    """All ranks hold the same bits."""
    mine = [v.numpy().tobytes() for v in variables]
    assert all(other == mine for other in hvd.allgather_object(mine)), "the ranks differ"
