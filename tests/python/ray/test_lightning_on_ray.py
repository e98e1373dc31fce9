"""Lightning with strategy="horovod" in the workers of a RayExecutor and of Ray Train."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

import ray
from ray.train import RunConfig, ScalingConfig

from horovod.ray.train import HorovodTrainer

ROOT = pathlib.Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.timeout(180)


def test_ray_executor(shared_ray, tmp_path):
    """The example, as a driver of the Ray that is there."""
    env = dict(os.environ, RAY_ADDRESS=ray.get_runtime_context().gcs_address)
    done = subprocess.run([sys.executable, str(ROOT / "examples/lightning/on_ray.py")], env=env,
                          cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "2 ranks: y = 2.0" in done.stdout, done.stdout


def loop(config):
    """The spellings of Lightning 2 and of Lightning 1.x, one after the other."""
    import pytorch_lightning as pl
    import torch

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    x = torch.linspace(-1, 1, 64).unsqueeze(1)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, 2 * x + 1), 4)
    model = Line()
    for arguments in (dict(strategy="horovod", accelerator="cpu"), dict(accelerator="horovod")):
        trainer = pl.Trainer(max_epochs=4, logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False,
                             default_root_dir=config["place"], **arguments)
        trainer.fit(model, data)
    weights = trainer.strategy.all_gather(model.layer.weight)
    if trainer.is_global_zero:
        pathlib.Path(config["place"], "facts").write_text(json.dumps({
            "ranks": trainer.world_size, "slope": model.layer.weight.item(),
            "equal": bool((weights[0] == weights[1]).all())}))


def test_ray_train(shared_ray, tmp_path):
    trainer = HorovodTrainer(
        loop, train_loop_config={"place": str(tmp_path)},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="lightning", storage_path=str(tmp_path / "storage")))
    trainer.fit()
    facts = json.loads((tmp_path / "facts").read_text())
    assert facts["ranks"] == 2 and facts["equal"] and abs(facts["slope"] - 2) < 0.05, facts
