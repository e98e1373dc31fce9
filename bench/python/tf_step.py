#!/usr/bin/env python3
"""What does a training step of TensorFlow 2 and Keras 3 cost more on several ranks?

    tf_step.py [--ranks 2] [--rounds 3] [--secs 2] [--models mlp,cnn] [--ways tape,fit]
               [--systems plain,hvd,mwms] [--python PYTHON] [--json FILE]

plain  every rank trains alone, all at the same time: no communication
hvd    DistributedGradientTape in a tf.function (tape), DistributedOptimizer in model.fit (fit)
mwms   tf.distribute.MultiWorkerMirroredStrategy over its gRPC ring: strategy.run (tape), model.fit
       (fit; Keras 3.15.1 fails to convert the batch: then the row is left out with a line)

One table: lowest and median time of a step over the launches, and the paired overhead: the time of
a distributed step minus that of plain steps of a second copy of the model that alternate with it in
the same processes.  Every rank must end with the same weights, bit for bit.  Exit status 1 when
weights differ or a launch fails.  Launches of the systems are interleaved; the last line says how
busy the machine was.
"""
import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

from common import Board, Launch, Spec, emit
from machine import free_port, note, quiet

BATCH, RATE, LIMIT = 32, 0.01, 300


# ---------------------------------------------------------------- a rank

def build(model):
    import keras
    keras.utils.set_random_seed(7)
    dense, conv = keras.layers.Dense, keras.layers.Conv2D
    if model == "mlp":                           # 20 layers, 5.0 M parameters in 40 tensors
        return keras.Sequential([keras.Input((500,))] +
                                [dense(500, activation="relu") for _ in range(20)])
    return keras.Sequential([keras.Input((32, 32, 3)),
                             conv(16, 3, padding="same", activation="relu"),
                             keras.layers.MaxPooling2D(),
                             conv(32, 3, padding="same", activation="relu"),
                             keras.layers.MaxPooling2D(),
                             keras.layers.Flatten(), dense(128, activation="relu"), dense(10)])


def data(model, rank, rows=BATCH):
    """Different on every rank."""
    import numpy as np
    rng = np.random.default_rng(1000 + rank)
    shape, width = ((500,), 500) if model == "mlp" else ((32, 32, 3), 10)
    return (rng.normal(size=(rows, *shape)).astype("float32"),
            rng.normal(size=(rows, width)).astype("float32"))


class Tape:
    """Steps of a tf.function of one's own."""

    def __init__(self, rank, kind, model):
        import keras
        import tensorflow as tf
        with rank.scope(kind):
            self.model = build(model)
            optimizer = keras.optimizers.SGD(RATE)
            optimizer.build(self.model.trainable_variables)
        if kind == "hvd":
            rank.hvd.broadcast_variables(self.model.variables, root_rank=0)
        shares = rank.size if kind == "mwms" else 1             # the strategy sums gradients

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.model(x, training=True) - y) ** 2) / shares
            if kind == "hvd":
                tape = rank.hvd.DistributedGradientTape(tape)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))

        if kind == "mwms":
            self.step = tf.function(lambda x, y: rank.strategy.run(step, args=(x, y)))
        else:
            self.step = tf.function(step)
        self.batch = [tf.constant(part) for part in data(model, rank.rank)]

    def run(self, steps):
        start = time.monotonic_ns()
        for _ in range(steps):
            self.step(*self.batch)
        return time.monotonic_ns() - start


def clock():
    import keras

    class Clock(keras.callbacks.Callback):
        """Time from the second batch on: the first one waits for the other ranks."""

        def on_train_batch_begin(self, batch, logs=None):
            if batch == 1:
                self.start = time.monotonic_ns()

        def on_train_batch_end(self, batch, logs=None):
            self.end = time.monotonic_ns()

    return Clock()


class Fit:
    """Steps of model.fit."""

    def __init__(self, rank, kind, model):
        import keras
        import tensorflow as tf
        with rank.scope(kind):
            self.model = build(model)
            optimizer = keras.optimizers.SGD(RATE)
            if kind == "hvd":
                from horovod.tensorflow.keras import DistributedOptimizer
                optimizer = DistributedOptimizer(optimizer)
            self.model.compile(optimizer=optimizer, loss="mse")
        if kind == "hvd":
            rank.hvd.broadcast_variables(self.model.variables, root_rank=0)
        # The strategy deals out a global batch.
        rows = BATCH * rank.size if kind == "mwms" else BATCH
        self.dataset = tf.data.Dataset.from_tensors(data(model, rank.rank, rows)).repeat()
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        self.dataset = self.dataset.with_options(options)
        self.clock = clock()

    def run(self, steps):
        self.model.fit(self.dataset, steps_per_epoch=steps + 1, verbose=0, callbacks=[self.clock])
        return self.clock.end - self.clock.start


class Rank:
    def __init__(self, a):
        self.kind = a.system
        self.hvd = self.strategy = None
        if self.kind != "hvd":
            self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if self.kind == "mwms":
            workers = [f"127.0.0.1:{port}" for port in a.ports.split(",")]
            os.environ["TF_CONFIG"] = json.dumps(
                {"cluster": {"worker": workers}, "task": {"type": "worker", "index": self.rank}})
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(2)
        if self.kind == "hvd":
            import horovod.tensorflow as hvd
            hvd.init()
            self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        elif self.kind == "mwms":
            experimental = tf.distribute.experimental
            options = experimental.CommunicationOptions(
                implementation=experimental.CommunicationImplementation.RING)
            self.strategy = tf.distribute.MultiWorkerMirroredStrategy(
                communication_options=options)
        self.board = Board(a.board, self.rank, self.size)
        self.board.barrier()

    def scope(self, kind):
        import contextlib
        return self.strategy.scope() if kind == "mwms" else contextlib.nullcontext()

    def measure(self, model, way, secs):
        board, make = self.board, {"tape": Tape, "fit": Fit}[way]
        jobs = {} if self.kind == "plain" else {"step": make(self, self.kind, model)}
        jobs["beside" if jobs else "step"] = make(self, "plain", model)
        first = digest(jobs["step"].model)
        for job in jobs.values():
            job.run(4)
        board.barrier(LIMIT)
        each = max(job.run(4) for job in jobs.values()) / 4e9
        block = board.agree(max(2, min(40, int(secs / 10 / each))))
        blocks = board.agree(max(5, min(60, int(secs / each / block / len(jobs)))))
        times = {name: [] for name in jobs}
        for _ in range(blocks):
            for name, job in jobs.items():
                board.barrier(LIMIT)
                times[name].append(job.run(block))
        row = dict(model=model, way=way, ranks=self.size, block=block, blocks=blocks,
                   parameters=int(jobs["step"].model.count_params()))
        for name, spent in times.items():
            board.publish(spent)
            every = zip(*(board.stamps(r, blocks) for r in range(self.size)))
            slowest = sorted(max(one) / block / 1e6 for one in every)
            row[name + "_ms"], row[name + "_floor_ms"] = statistics.median(slowest), slowest[0]
            board.barrier()
        last = digest(jobs["step"].model)
        board.publish([last])
        same = all(board.stamps(r, 1)[0] == last for r in range(self.size))
        row["ok"] = last != first and (same or self.kind == "plain")
        board.barrier()
        return row


def digest(model):
    bits = b"".join(w.tobytes() for w in model.get_weights())
    return int.from_bytes(hashlib.sha256(bits).digest()[:7], "big")


def be_a_rank(a):
    rank = Rank(a)
    for model in a.models.split(","):
        for way in a.ways.split(","):
            try:
                row = rank.measure(model, way, a.secs)
            except ValueError as error:         # while tracing, so on every rank alike
                if (rank.kind, way) != ("mwms", "fit"):
                    raise
                rank.board.barrier()
                row = dict(model=model, way=way, ok=True, refused=str(error).splitlines()[0][:80])
            if rank.rank == 0:
                emit(a.out, system=rank.kind, **row)
    rank.board.barrier()
    if rank.hvd:
        rank.hvd.shutdown()


# ---------------------------------------------------------------- the driver

def missing(system, python):
    """None, or one line saying why a system is left out."""
    code = "import tensorflow, keras"
    if system == "hvd":
        code += "; import horovod.tensorflow.keras"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    return (done.stderr.strip().splitlines() or ["no"])[-1] if done.returncode else None


def launch(system, a):
    """Rows of one launch, and whether all is well."""
    words = ["tf_step.py", "--models", a.models, "--ways", a.ways, "--secs", str(a.secs),
             "--ports", ",".join(str(free_port()) for _ in range(a.ranks))]
    with Launch(Spec(system, system, a.python), a.ranks, words) as job:
        rows, bad = job.wait(LIMIT + 20 * a.secs)
        if bad:
            note(f"{system}: {bad}\n    " + "\n    ".join(job.tail()))
    wrong = [row for row in rows if not row["ok"]]
    for row in wrong:
        note(f"{system}, {row['model']}, {row['way']}: the weights differ, or did not move")
    for row in [row for row in rows if "refused" in row]:
        note(f"{system}, {row['model']}, {row['way']} left out: {row['refused']}")
        rows.remove(row)
    return rows, not bad and not wrong


def best(rows, system, model, way, key):
    found = [row[key] for row in rows
             if (row["system"], row["model"], row["way"]) == (system, model, way)]
    return (min(found), statistics.median(found)) if found else None


def overhead(rows, system, model, way):
    """Lowest and median paired overhead of the launches."""
    found = [row["step_ms"] - row["beside_ms"] for row in rows
             if (row["system"], row["model"], row["way"]) == (system, model, way)]
    return (min(found), statistics.median(found)) if found else None


def table(rows, a, systems):
    others = [s for s in systems if s != "plain"]
    print(f"\nms per step, {a.ranks} ranks, batch {BATCH} each; lowest / median of {a.rounds} "
          f"launches; overhead: paired")
    heads = [h for s in systems for h in ([s] if s == "plain" else [s, s + " overhead"])]
    ratio = f"{'mwms / hvd':>12}" if len(others) == 2 else ""
    print(f"{'model':6}{'way':6}" + "".join(f"{h:>16}" for h in heads) + ratio)
    for model in a.models.split(","):
        for way in a.ways.split(","):
            line = f"{model:6}{way:6}"
            for system in systems:
                pairs = [best(rows, system, model, way, "step_ms")]
                if system != "plain":
                    pairs.append(overhead(rows, system, model, way))
                line += "".join(f"{'%.2f / %.2f' % pair if pair else '-':>16}" for pair in pairs)
            if len(others) == 2:
                ours, peer = (overhead(rows, s, model, way) for s in ("hvd", "mwms"))
                known = ours and peer and ours[1] > 0
                line += f"{'%.2f' % (peer[1] / ours[1]) if known else '-':>12}"
            print(line)


def drive(a):
    systems = []
    for system in a.systems.split(","):
        why = missing(system, a.python)
        if why:
            note(f"{system} left out: {why}")
        else:
            systems.append(system)
    rows, well, busy = [], True, []
    for number in range(a.rounds):
        for system in systems:
            busy.append(quiet(10.0))
            found, good = launch(system, a)
            rows += [dict(row, round=number) for row in found]
            well = well and good
    table(rows, a, systems)
    if a.json:
        with open(a.json, "w") as f:
            json.dump(dict(rows=rows, busy=busy, load=os.getloadavg()), f, indent=1)
    print(f"CPUs in use before the launches: {', '.join('%d%%' % (100 * b) for b in busy)}")
    return 0 if well else 1


def main():
    p = argparse.ArgumentParser(usage=__doc__)
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--secs", type=float, default=2.0, help="time per model and way")
    p.add_argument("--models", default="mlp,cnn")
    p.add_argument("--ways", default="tape,fit")
    p.add_argument("--systems", default="plain,hvd,mwms")
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--json")
    for hidden in "--system", "--board", "--out", "--ports":
        p.add_argument(hidden, help=argparse.SUPPRESS)
    a = p.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if a.system:
        be_a_rank(a)
        return 0
    return drive(a)


if __name__ == "__main__":
    sys.exit(main())
