"""Whole jobs: the examples, a killed rank, TensorFlow beside torch, and without it."""
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from launch import ROOT, Job

sys.path.insert(0, str(ROOT / "tests/python/launcher"))
import hvdrun  # noqa: E402

EXAMPLES = ROOT / "examples" / "tensorflow"
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2"}
LIMIT = 200
pytestmark = pytest.mark.timeout(240)


def finish(job):
    codes = job.wait(LIMIT)
    assert codes == [0] * job.size, job.everything()
    return job.everything()


def test_the_tape():
    with Job(2, [sys.executable, str(EXAMPLES / "tape.py"), "--steps", "40"], QUIET) as job:
        assert "2 ranks, equal weights" in finish(job)


def test_fit(tmp_path):
    path = tmp_path / "model.keras"
    with Job(2, [sys.executable, str(EXAMPLES / "fit.py"), "--checkpoint", str(path)],
             QUIET) as job:
        assert "epoch 3: loss" in finish(job)
    assert path.exists()


def test_a_killed_rank_ends_fit_on_the_others():
    """Also: torch in the same process, other threads, and an exit without shutdown."""
    code = textwrap.dedent("""
        import os, signal, time
        import keras, numpy as np, torch, tensorflow as tf
        import horovod.torch, horovod.tensorflow.keras as hvd
        import horovod.tensorflow
        hvd.init()
        assert horovod.torch.allreduce(torch.ones(2), op=horovod.torch.Sum).tolist() == [3, 3]
        assert float(horovod.tensorflow.allreduce(tf.constant(3.0))) == 3.0

        class Die(keras.callbacks.Callback):
            def on_train_batch_begin(self, batch, logs=None):
                if batch == 5 and hvd.rank() == 1:
                    os.kill(os.getpid(), signal.SIGKILL)

        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer=hvd.DistributedOptimizer("sgd"), loss="mse")
        try:
            model.fit(np.ones((64, 4)), np.ones(64), batch_size=4, verbose=0, callbacks=[Die()])
        except tf.errors.UnknownError as e:
            text = str(e)
            assert "[horovod PEER_LOST 1]" in text and "rank 1" in text, text
            print("told: rank 1")
    """)
    with Job(3, [sys.executable, "-c", code], QUIET) as job:
        codes = job.wait(LIMIT)
        assert codes == [0, -signal.SIGKILL, 0], job.everything()
        for rank in (0, 2):
            assert "told: rank 1" in job.output(rank), job.everything()


def test_without_tensorflow():
    code = "import sys; sys.modules['tensorflow'] = None; import horovod.tensorflow"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         timeout=100)
    assert run.returncode == 1
    assert "ImportError: horovod.tensorflow needs TensorFlow" in run.stderr, run.stderr


def test_another_backend_of_keras_is_refused():
    code = textwrap.dedent("""
        import horovod.keras as hvd, keras
        try:
            hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        except ImportError as e:
            assert "horovod.torch" in str(e)
            print("refused")
    """)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                         timeout=LIMIT, env={**os.environ, **QUIET, "KERAS_BACKEND": "torch"})
    assert run.stdout == "refused\n", run.stdout + run.stderr


def test_elastic():
    with Job(2, [sys.executable, str(EXAMPLES / "elastic.py"), "--epochs", "2"], QUIET) as job:
        assert "2 epochs, 2 ranks: loss" in finish(job)


FIT_WITH_A_DEATH = """
import os, pathlib, signal, sys
import keras, numpy as np
import horovod.tensorflow.keras as hvd

folder = pathlib.Path(sys.argv[1])
hvd.init()
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.01, momentum=0.9))
model.compile(optimizer=optimizer, loss="mse")
optimizer.build(model.trainable_variables)
state = hvd.elastic.KerasState(model, epoch=0, batch=0)

class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if state.epoch == 1 and batch == 3 and hvd.rank() == 1:
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

@hvd.elastic.run
def train(state):
    with open(folder / "enter", "a") as file:
        print(os.getpid(), hvd.size(), state.epoch, state.batch, file=file)
    x = np.linspace(-1, 1, 128).reshape(32, 4)
    died = (folder / "died").exists()
    model.fit(x, x.sum(1), batch_size=4, epochs=3 - state.epoch, verbose=0,
              callbacks=([] if died else [Die()]) + [
                  hvd.elastic.UpdateBatchStateCallback(state),
                  hvd.elastic.UpdateEpochStateCallback(state),
                  hvd.elastic.CommitStateCallback(state, batches_per_commit=1)])

train(state)
print("done", state.epoch, hvd.size(), flush=True)
"""


def test_fit_goes_on_when_a_worker_is_killed(tmp_path):
    """The survivor keeps its process and goes on where it was."""
    script = tmp_path / "fit.py"
    script.write_text(FIT_WITH_A_DEATH)
    run = hvdrun.run("-np", "2", "--min-np", "1", "-H", "localhost:2", "--reset-limit", "3",
                     sys.executable, str(script), str(tmp_path), limit=LIMIT, env=QUIET)
    assert run.code == 0, run.text + run.error
    rows = [tuple(map(int, line.split())) for line in (tmp_path / "enter").read_text().split("\n")
            if line]
    assert (tmp_path / "died").exists() and "done 3" in run.text, run.text
    first = {row[0] for row in rows[:2]}
    survived = [row for row in rows[2:] if row[0] in first]
    assert survived and survived[0][2:] == (1, 2), rows     # the last batch that was done
