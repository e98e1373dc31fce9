"""What disagrees or is wrong fails on every rank, with the right class, and the job goes on."""
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import elastic
from tf_support import WAYS, case, close, raises


@case(2, 3)
def ranks_that_disagree():
    me = hvd.rank()
    kind = tf.errors.FailedPreconditionError
    for way in WAYS:
        text = str(raises(kind, way(lambda: hvd.allreduce(tf.ones(2 + me), name="shapes"))))
        assert "shape" in text and "rank" in text and "[horovod MISMATCH" in text, text
        raises(kind, way(lambda: hvd.allreduce(
            tf.ones(3, tf.float32 if me else tf.int32), name="types")))
        raises(kind, way(lambda: hvd.allreduce(tf.ones(3), name="ops",
                                               op=hvd.Sum if me else hvd.Max)))
        raises(kind, way(lambda: hvd.broadcast(tf.ones(3), root_rank=me, name="roots")))
        raises(kind, way(lambda: hvd.allgather(tf.ones((2, 2 + me)), name="rows")))
        raises(kind, way(lambda: hvd.grouped_allreduce([tf.ones(1), tf.ones(2 + me)],
                                                       name="group")))
        close(way(lambda: hvd.allreduce(tf.ones(2), op=hvd.Sum))(), [hvd.size()] * 2)


@case(2)
def arguments_that_are_wrong():
    """Wrong on one rank: the others hear of it instead of waiting."""
    me = hvd.rank()
    kind = tf.errors.InvalidArgumentError
    for way in WAYS:
        raises(kind, way(lambda: hvd.alltoall(tf.ones(1), splits=[1, 1])))
        raises(kind, way(lambda: hvd.alltoall(tf.ones(3))))
        splits = [2, 2] if me == 0 else [1, 1]
        raises(kind if me == 0 else tf.errors.FailedPreconditionError,
               way(lambda: hvd.alltoall(tf.ones(2), splits=splits, name="one")))
        raises((kind, ValueError), way(lambda: hvd.reducescatter(tf.constant(1.0))))
        raises((kind, tf.errors.FailedPreconditionError),
               way(lambda: hvd.broadcast(tf.ones(1), root_rank=7)))
        raises(NotImplementedError, way(lambda: hvd.reducescatter(tf.ones(2), op=hvd.Max)))
        close(way(lambda: hvd.alltoall(tf.ones(2), splits=[1, 1]))()[1], [1, 1])
    raises(ValueError, hvd.allreduce, tf.ones(1), process_set=hvd.ProcessSet([0]))
    raises(ValueError, hvd.allreduce, tf.ones(1), average=True, op=hvd.Sum)


@case(2)
def without_a_job():
    hvd.shutdown()
    function = tf.function(lambda: hvd.allreduce(tf.ones(1)), autograph=False)
    for call in function, lambda: hvd.allreduce(tf.ones(1)), hvd.size_op:
        assert "initialized" in str(raises(tf.errors.FailedPreconditionError, call))
    raises(ValueError, hvd.rank)
    hvd.init(process_sets="dynamic")
    close(function(), [1.0])
    close(hvd.allreduce(tf.ones(1)), [1.0])


@case(2)
def elastic_run_converts_marked_errors_only():
    tries = []

    @hvd.elastic.run
    def train(state):
        tries.append(state.step)
        if len(tries) == 1:
            state.step = 5
            hvd.allreduce(tf.ones(2 + hvd.rank()), name="mismatch")
        return state.step
    state = elastic.TensorFlowState([tf.Variable(1.0)], step=0)
    assert train(state) == 0 and tries == [0, 0]

    @hvd.elastic.run
    def broken(state):
        raise tf.errors.UnknownError(None, None, "somebody else's")
    raises(tf.errors.UnknownError, broken, state)
    marked = tf.errors.UnknownError(None, None, "x [horovod PEER_LOST 3] rank 3 is gone\nmore")
    error = elastic.internal_error(marked)
    assert isinstance(error, HorovodInternalError)
    assert (error.status, error.rank, error.scope) == ("PEER_LOST", 3, "JOB")
