"""Lightning in the workers of a RayExecutor.

    python on_ray.py
"""
import ray
from horovod.ray import RayExecutor


def train():
    """Runs in every worker; the strategy finds the job that Ray has formed."""
    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    class Line(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, batch_idx):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05)

    x = torch.linspace(-1, 1, 256).unsqueeze(1)
    trainer = L.Trainer(strategy="horovod", accelerator="cpu", max_epochs=12, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False)
    model = Line()
    trainer.fit(model, DataLoader(TensorDataset(x, 2 * x + 1), batch_size=16, shuffle=True))
    return trainer.world_size, model.layer.weight.item(), model.layer.bias.item()


if __name__ == "__main__":
    ray.init()
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=30), num_workers=2)
    executor.start()
    try:
        results = executor.run(train)
    finally:
        executor.shutdown()
        ray.shutdown()
    assert results[0] == results[1], results
    print("{} ranks: y = {:.2f} x + {:.2f}".format(*results[0]))
