"""Whole jobs: the examples, started as users start them, and what a failure looks like."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "examples" / "lightning"
BIN = pathlib.Path(sys.executable).parent


@pytest.fixture
def start(tmp_path):
    """start(script, arguments...) with 2 ranks -> (exit code, stdout, stderr)"""
    def run(*command, limit=100, **variables):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "PL_"))}
        env.update(PATH=f"{BIN}{os.pathsep}{env['PATH']}", OMP_NUM_THREADS="1",
                   HOROVOD_RECORDER_DIR=str(tmp_path), PYTHONDONTWRITEBYTECODE="1",
                   **{"PYTHONWARNINGS": "ignore", **variables})
        launcher = shutil.which("horovodrun", path=env["PATH"])
        done = subprocess.run([launcher, "-np", "2", sys.executable, *map(str, command)],
                              env=env, cwd=tmp_path, text=True, capture_output=True,
                              timeout=limit)
        return done.returncode, done.stdout, done.stderr
    return run


def test_classifier(start, tmp_path):
    code, out, err = start(EXAMPLES / "classifier.py", "--images", "512", "--epochs", "2",
                           "--directory", tmp_path / "models")
    assert code == 0, err
    assert re.search(r"2 ranks, .*'accuracy': '0\.\d+'.*best model in .*\.ckpt", out), out
    assert len(list((tmp_path / "models").iterdir())) == 1
    assert err.count("learning rate scaled") == 1 and err.count("torchmetrics objects") == 1


def test_the_words_of_lightning_1(start):
    code, out, err = start(EXAMPLES / "lightning1.py")
    assert code == 0, err
    assert "2 ranks: y = 2.0" in out, out


def test_fabric(start):
    code, out, err = start(EXAMPLES / "fabric.py")
    assert code == 0, err
    assert re.search(r"2 ranks, 9\d% right", out), out


def test_a_failing_rank_ends_the_job(start, tmp_path):
    """Its own error is shown, and nobody waits."""
    script = tmp_path / "fails.py"
    script.write_text(textwrap.dedent("""
        import lightning as L
        import torch

        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def training_step(self, batch, batch_idx):
                if batch_idx == 3 and self.global_rank == 1:
                    raise ValueError("no such sample")
                return self.layer(batch).sum()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        trainer = L.Trainer(strategy="horovod", accelerator="cpu", max_epochs=1, logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
        try:
            trainer.fit(Net(), torch.utils.data.DataLoader(torch.zeros(64, 2), batch_size=2))
        except Exception as e:
            print("told:", type(e).__name__, e, flush=True)
            raise
    """))
    code, out, err = start(script)
    assert code != 0
    assert "told: ValueError no such sample" in out, out + err
    assert re.search(r"told: HorovodInternalError .*rank 1.*ValueError: no such sample", out), out


def test_rank_zero_saves_alone(start, tmp_path):
    """The others have ended, in order, when it waits for them."""
    script = tmp_path / "saves.py"
    script.write_text(textwrap.dedent("""
        import lightning as L
        from lightning.pytorch.demos.boring_classes import BoringModel

        trainer = L.Trainer(strategy="horovod", accelerator="cpu", fast_dev_run=True,
                            enable_progress_bar=False)
        trainer.fit(BoringModel())
        if trainer.is_global_zero:
            trainer.save_checkpoint("model.ckpt")
            trainer.strategy.barrier("again")
            print("saved", flush=True)
    """))
    code, out, err = start(script, PYTHONWARNINGS="default")
    assert code == 0 and "saved" in out and (tmp_path / "model.ckpt").exists(), err
    assert re.search(r"barrier Trainer.save_checkpoint: .*rank 1 .*has left the job", err), err


def test_ddp_finds_its_ranks(start, tmp_path):
    """HorovodEnvironment serves Lightning's own strategies under horovodrun."""
    script = tmp_path / "ddp.py"
    script.write_text(textwrap.dedent("""
        import lightning as L
        import torch
        from horovod.lightning import HorovodEnvironment

        class Net(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(2, 1)

            def training_step(self, batch, batch_idx):
                return self.layer(batch).sum()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        trainer = L.Trainer(strategy="ddp", accelerator="cpu", devices=2, max_epochs=1,
                            plugins=[HorovodEnvironment()], logger=False,
                            enable_checkpointing=False, enable_progress_bar=False)
        trainer.fit(Net(), torch.utils.data.DataLoader(torch.zeros(8, 2), batch_size=2))
        print("rank", trainer.global_rank, "of", trainer.world_size, flush=True)
    """))
    code, out, err = start(script)
    assert code == 0, err
    assert "rank 0 of 2" in out and "rank 1 of 2" in out, out
