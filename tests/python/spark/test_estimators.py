"""The estimators on a real Spark; small variants train in this process."""
import io
import os
import pathlib

import numpy
import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")
pytest.importorskip("pyarrow")

import torch.nn.functional as F  # noqa: E402
from pyspark.ml import Pipeline, PipelineModel  # noqa: E402
from pyspark.ml.feature import VectorAssembler  # noqa: E402
from pyspark.ml.linalg import Vectors  # noqa: E402

from horovod.spark.common import util  # noqa: E402
from horovod.spark.common._reader import Reader  # noqa: E402
from horovod.spark.common.backend import LocalBackend, SparkBackend  # noqa: E402
from horovod.spark.torch import TorchEstimator, TorchModel  # noqa: E402
from estimator_support import Here  # noqa: E402


@pytest.fixture
def frame(spark):
    rows = [(float(i) / 40, Vectors.dense([(i * k % 11) / 11 - 0.5 for k in (3, 5, 7)]),
             2.0 * i / 40, int(i % 5 == 0), 1.0 + i % 2) for i in range(40)]
    return spark.createDataFrame(rows, ["x", "features", "y", "held", "weight"])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, features):
        return self.layer(torch.cat([x, features], dim=1))


def estimator(store, seed=1, **kwargs):
    torch.manual_seed(seed)
    model = kwargs.pop("model", None) or Net()
    options = dict(store=store, model=model, loss=F.mse_loss, verbose=0, batch_size=5,
                   optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
                   feature_cols=["x", "features"], input_shapes=[[-1, 1], [-1, 3]],
                   label_cols=["y"], random_seed=7, run_id="run")
    if "num_proc" not in kwargs:
        options["backend"] = Here()
    return TorchEstimator(**{**options, **kwargs})


def by_hand(store, size, epochs, batch_size=5, rate=0.1):
    """The same training without Spark: gradients of all ranks' batches, averaged."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * size, momentum=0.5)
    readers = [Reader(store.get_train_data_path(0), ["x", "features", "y"], batch_size, rank,
                      size, seed=7) for rank in range(size)]
    steps = max(1, sum(r.rows for r in readers) // batch_size // size)
    for epoch in range(epochs):
        for batches in zip(*(r.batches(epoch, steps) for r in readers)):
            gradients = []
            for batch in batches:
                tensors = {k: torch.from_numpy(v).float() for k, v in batch.items()}
                output = model(tensors["x"].reshape(-1, 1), tensors["features"])
                loss = F.mse_loss(output, tensors["y"].reshape(-1, 1))
                gradients.append(torch.autograd.grad(loss, list(model.parameters())))
            for p, *parts in zip(model.parameters(), *gradients):
                p.grad = torch.stack(parts).mean(0)
            optimizer.step()
    return model.layer.weight.detach()


def test_two_ranks_train_as_by_hand_and_predict(frame, store, spark, tmp_path):
    trained = estimator(store, num_proc=2, epochs=3, validation="held",
                        metrics=[F.l1_loss]).fit(frame)
    weight = trained.getModel().layer.weight.detach()
    assert torch.allclose(weight, by_hand(store, 2, 3), atol=1e-6), "trained otherwise"
    history = trained.getHistory()
    assert [e["epoch"] for e in history] == [0, 1, 2]
    assert all(len(e[part]["all_metrics"][0]) == 1 for e in history
               for part in ("train", "validation"))

    rows = trained.transform(frame).collect()
    expected = trained.getModel()(torch.tensor([[r.x] for r in rows]),
                                  torch.tensor(numpy.array([r.features.toArray() for r in rows]),
                                               dtype=torch.float32)).flatten()
    assert numpy.allclose([r.y__output for r in rows], expected.detach().numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="already has columns"):
        trained.copy().setOutputCols(["x"]).transform(frame)

    trained.write().overwrite().save(f"file://{tmp_path}/model")
    loaded = TorchModel.load(f"file://{tmp_path}/model")
    assert loaded.getRunId() == "run" and loaded.getHistory() == history
    assert torch.equal(loaded.getModel().layer.weight, trained.getModel().layer.weight)
    assert loaded.getOptimizer().param_groups[0]["momentum"] == 0.5


def test_a_run_goes_on_with_the_right_rate(frame, store):
    first = estimator(store, epochs=1).fit(frame)
    again = estimator(store, seed=2, epochs=1).fit(frame)       # its own weights are not used
    saved = torch.load(io.BytesIO(store.read(store.get_run_path("run") + "/checkpoint")),
                       weights_only=False)
    assert saved["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.1)
    assert torch.equal(saved["model"]["layer.weight"], again.getModel().layer.weight)
    assert not torch.equal(first.getModel().layer.weight, again.getModel().layer.weight)
    assert again.getHistory()[0]["train"]["loss"] < first.getHistory()[0]["train"]["loss"]


def test_saved_and_loaded_estimators_train_alike(frame, store, tmp_path):
    one = estimator(store, epochs=2)
    one.write().overwrite().save(f"file://{tmp_path}/estimator")
    loaded = TorchEstimator.load(f"file://{tmp_path}/estimator")
    assert (loaded.getStore(), loaded.getBackend(), loaded.getEpochs()) == (None, None, 2)
    own = {id(p) for p in loaded.getModel().parameters()}
    assert {id(p) for g in loaded.getOptimizer().param_groups for p in g["params"]} == own
    weight = one.fit(frame).getModel().layer.weight
    again = loaded.setStore(store).setBackend(Here()).setRunId("other").fit(frame)
    assert torch.equal(again.getModel().layer.weight, weight)


def test_in_a_pipeline(spark, store, tmp_path):
    frame = spark.createDataFrame([(float(i), 1.0, i * 2.0) for i in range(20)], ["a", "b", "y"])
    net = torch.nn.Linear(2, 1)
    stages = [VectorAssembler(inputCols=["a", "b"], outputCol="v"),
              estimator(store, model=net, feature_cols=["v"], input_shapes=[[-1, 2]],
                        optimizer=torch.optim.SGD(net.parameters(), lr=1e-4))]
    fitted = Pipeline(stages=stages).fit(frame)
    fitted.write().overwrite().save(f"file://{tmp_path}/pipeline")
    rows = PipelineModel.load(f"file://{tmp_path}/pipeline").transform(frame).collect()
    assert rows == fitted.transform(frame).collect() and len(rows) == 20


def test_sample_weights_groups_and_windows(frame, store):
    """Two parameter groups, a window that does not divide the steps, weighted rows."""
    model = Net()
    groups = [{"params": [model.layer.weight], "lr": 0.05},
              {"params": [model.layer.bias], "lr": 0.0}]
    bias = model.layer.bias.detach().clone()
    trained = estimator(store, model=model, optimizer=torch.optim.SGD(groups),
                        sample_weight_col="weight", backward_passes_per_step=3, epochs=2,
                        shuffle=False).fit(frame)
    assert torch.equal(trained.getModel().layer.bias, bias)
    assert [g["lr"] for g in trained.getOptimizer().param_groups] == [0.05, 0.0]
    assert trained.getHistory()[1]["train"]["loss"] < trained.getHistory()[0]["train"]["loss"]


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(3, 1), torch.nn.Linear(3, 3)

    def forward(self, features):
        return self.a(features), self.b(features)


def test_two_labels_of_different_types(frame, store):
    model = Two()
    trained = estimator(
        store, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        loss=[F.mse_loss, F.mse_loss], loss_weights=[0.8, 0.2], feature_cols=["features"],
        input_shapes=[[-1, 3]], label_cols=["held", "features"],
        metrics=[F.l1_loss, [F.l1_loss, F.mse_loss]]).fit(frame)
    assert [len(g) for g in trained.getHistory()[0]["train"]["all_metrics"]] == [2, 2]
    predicted = trained.transform(frame)
    assert predicted.schema["held__output"].dataType == frame.schema["held"].dataType
    row = predicted.first()
    assert isinstance(row.held__output, int) and len(row.features__output) == 3


def test_packed_vectors_train_as_dense_ones(spark, store):
    rows = [(Vectors.sparse(20, {i % 20: 1.0 + i, (i + 7) % 20: 2.0}), float(i % 3))
            for i in range(30)]
    frame = spark.createDataFrame(rows, ["v", "y"])
    weights = []
    for packed in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Linear(20, 1)
        trained = estimator(store, model=model, feature_cols=["v"], input_shapes=[[-1, 20]],
                            optimizer=torch.optim.SGD(model.parameters(), lr=1e-3),
                            run_id=f"packed {packed}", compress_sparse_cols=packed).fit(frame)
        about = trained.get_metadata()["v"]
        assert about["intermediate_format"] == ("custom_sparse_format" if packed else "array")
        weights.append(trained.getModel().weight.detach())
    assert torch.equal(*weights)


def test_fit_on_parquet_and_transformation(frame, store):
    frame.select("x", "y").write.parquet(store.get_train_data_path())

    def shift(batch):
        batch["y"] = batch["y"] + 1.0
        return batch
    model = torch.nn.Linear(1, 1)
    trained = estimator(store, model=model, feature_cols=["x"], input_shapes=[[-1, 1]],
                        optimizer=torch.optim.SGD(model.parameters(), lr=0.2), epochs=60,
                        transformation_fn=shift).fit_on_parquet()
    assert trained.getModel()(torch.tensor([[0.0]])).item() == pytest.approx(1.0, abs=0.2)


def test_data_is_written_once_and_never_under_somebody(frame, store):
    with util.prepare_data(1, store, frame, ["y"], ["x"], validation=0.25) as index:
        train, val, metadata, _ = util.get_dataset_properties(index)
        assert train + val == 40 and val > 0 and set(metadata) == {"x", "y"}
        with util.prepare_data(1, store, frame.filter("x > 0.5"), ["y"], ["x"]) as other:
            assert (index, other) == (0, 1)
    stamp = [p.stat().st_mtime_ns for p in sorted(_files(store, 0))]
    with util.prepare_data(1, store, frame, ["y"], ["x"], validation=0.25) as again:
        assert again == 0
    assert [p.stat().st_mtime_ns for p in sorted(_files(store, 0))] == stamp
    with util.prepare_data(1, store, frame.limit(7), ["y"], ["x"]) as third:
        assert third == 0                           # the lowest that nobody uses


def _files(store, index):
    path = store.get_localized_path(store.get_train_data_path(index))
    return pathlib.Path(path).glob("*.parquet")


def test_what_is_refused(frame, store):
    for change, text in [
            (dict(model=None), "Model parameter is required"),
            (dict(label_cols=None), "Label columns are required"),
            (dict(optimizer=None), "Optimizer parameter is required"),
            (dict(feature_cols=["nothing"], input_shapes=[[-1, 1]]), "nothing"),
            (dict(input_shapes=[[-1, 1]]), "must equal input shapes count 1"),
            (dict(input_shapes=[[-1, 1], [-1, 4]]), "with size 3"),
            (dict(num_proc=2, backend=Here()), "At most one of parameters"),
            (dict(loss_constructors=lambda **names: F.mse_loss), "at a time"),
            (dict(validation=0.000001), "Validation DataFrame is empty")]:
        one = estimator(store)
        with pytest.raises(ValueError, match=text):
            one.setParams(**change).fit(frame)
    for name, value in (("validation", 1.5), ("validation", []), ("epochs", 0),
                        ("backward_passes_per_step", 0), ("reader_pool_type", "x")):
        with pytest.raises(ValueError, match=name):
            TorchEstimator(**{name: value})
    with pytest.raises(ValueError, match="No rows found in training dataset"):
        estimator(store).fit(frame.filter("x > 100"))
    with pytest.raises(TypeError, match="no parameter"):
        TorchEstimator(epoch=3)
    assert TorchEstimator().setUseGpu(False).setBackwardPassesPerStep(2).getUseGpu() is False


def test_backends(spark):
    assert SparkBackend().num_processes() == 2
    assert LocalBackend(2, env={"A": "1"}).run(_variable, ("A",), env={"B": "2"}) == ["1", "1"]


def _variable(name):
    return os.environ.get(name)


def test_names_that_are_not_there():
    for name in ("keras", "tensorflow"):
        with pytest.raises(ImportError, match=f"horovod.spark.{name} is not available"):
            __import__(f"horovod.spark.{name}")
