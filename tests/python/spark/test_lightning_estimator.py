"""The estimator for Lightning; two ranks on Spark, variants in this process."""
import warnings

import pytest

pytest.importorskip("pyspark")
torch = pytest.importorskip("torch")
pl = pytest.importorskip("lightning.pytorch")

import torch.nn.functional as F  # noqa: E402
from pyspark.ml.linalg import Vectors  # noqa: E402

from horovod.spark.lightning import TorchEstimator, TorchModel  # noqa: E402
from horovod.spark.lightning import _train  # noqa: E402
from estimator_support import Here  # noqa: E402


@pytest.fixture
def frame(spark):
    vectors = [Vectors.dense([(i * k % 101) / 101 - 0.5 for k in (3, 5, 7)]) for i in range(64)]
    return spark.createDataFrame([(v, float(v.toArray().sum() > 0)) for v in vectors],
                                 ["features", "label"])


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, features):
        return self.layer(features.float())

    def loss(self, batch):
        return F.binary_cross_entropy_with_logits(self(batch["features"]).flatten(),
                                                  batch["label"].float())

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1.0)


def estimator(store, **kwargs):
    options = dict(store=store, model=Classifier(), feature_cols=["features"],
                   input_shapes=[[-1, 3]], label_cols=["label"], batch_size=8, epochs=2,
                   verbose=0, run_id="run", random_seed=1)
    if "num_proc" not in kwargs:
        options["backend"] = Here()
    return TorchEstimator(**{**options, **kwargs})


def test_two_ranks_best_model_and_resume(frame, store, tmp_path):
    best = pl.callbacks.ModelCheckpoint(monitor="val_loss")
    given = [best]
    one = estimator(store, num_proc=2, validation=0.25, callbacks=given, epochs=3)
    trained = one.fit(frame)
    assert given == [best] and best.dirpath is None     # the user's objects stay as they are
    assert {"train_loss", "val_loss"} <= set(trained.getHistory())
    rows = trained.transform(frame).collect()
    assert sum((r.label__output > 0) == (r.label > 0.5) for r in rows) > 50
    assert store.get_checkpoints("run") and store.exists(store.get_logs_path("run"))
    trained.write().overwrite().save(f"file://{tmp_path}/m")
    assert torch.equal(TorchModel.load(f"file://{tmp_path}/m").getModel().layer.weight,
                       trained.getModel().layer.weight)


def test_a_run_goes_on_from_its_newest_checkpoint(frame, store):
    seen = []

    class Epochs(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            seen.append(trainer.current_epoch)
    estimator(store, callbacks=[Epochs()]).fit(frame)
    estimator(store, callbacks=[Epochs()], epochs=12).fit(frame)
    assert seen == [0, 1, *range(2, 12)]
    estimator(store, callbacks=[Epochs()], epochs=13).fit(frame)
    assert seen[12:] == [12]                        # epoch=11 comes after epoch=9


def test_a_plain_module_is_wrapped(frame, store):
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def forward(self, features):
            return self.layer(features)
    model = Plain()
    before = model.layer.weight.detach().clone()
    trained = estimator(store, model=model, loss=F.binary_cross_entropy_with_logits,
                        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
                        train_async_data_loader_queue_size=4).fit(frame)
    assert not torch.equal(trained.getModel().layer.weight, before)
    assert len(trained.transform(frame).collect()) == 64


def test_what_is_refused(frame, store):
    for name, value in (("optimizer", object()), ("loss", F.mse_loss), ("loss_weights", [1.0])):
        with pytest.raises(ValueError, match=f"Parameter {name} cannot be given"):
            estimator(store).setParams(**{name: value}).fit(frame)
    with pytest.raises(ValueError, match="needs the parameter optimizer"):
        estimator(store, model=torch.nn.Linear(3, 1)).fit(frame)


class NotANumber(Classifier):
    def training_step(self, batch, batch_idx):
        return self.loss(batch) * float("nan")


def test_a_loss_that_is_no_number_ends_the_training(frame, store):
    with pytest.raises(Exception, match="nan"):
        estimator(store, model=NotANumber(), terminate_on_nan=True).fit(frame)


def test_words_of_lightning_1():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        now = _train.current_arguments(dict(
            progress_bar_refresh_rate=0, checkpoint_callback=False, weights_summary=None,
            reload_dataloaders_every_epoch=True, gpus=0, stochastic_weight_avg=True,
            resume_from_checkpoint="x", max_steps=3), pl)
    more = now.pop("_more_callbacks")
    assert now == dict(enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu",
                       enable_model_summary=False, reload_dataloaders_every_n_epochs=1,
                       max_steps=3)
    assert [type(c).__name__ for c in more] == ["StochasticWeightAveraging"]
    assert any("resume_from_checkpoint" in str(w.message) for w in caught)
    pl.Trainer(**now, logger=False, callbacks=more)


def test_removed_hooks_are_told():
    class Old(pl.Callback):
        def on_epoch_end(self, trainer, module):
            pass
    with pytest.warns(UserWarning, match="on_epoch_end"):
        _train._warn_of_removed_hooks([Old()])
