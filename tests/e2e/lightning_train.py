"""A Lightning training, as people write them: Trainer, and ModelCheckpoint at each epoch.

Lightning does not save the state of the random numbers: so each step begins with a seed of its own, and the sampler's
order depends on the epoch alone. The last line holds a digest of all weights.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import torch  # type: ignore[import-not-found]

if torch.__version__.startswith("1."):  # a part of it that Lightning would load needs a Python before 3.11
    torch.distributed.is_available = lambda: False

from lightning.pytorch import LightningModule, Trainer  # type: ignore[import-not-found]
from lightning.pytorch.callbacks import ModelCheckpoint  # type: ignore[import-not-found]

EPOCHS, BATCHES, ROWS = int(sys.argv[1]), 4, 16
CUDA = os.environ.get("WITNESS_DEVICE") == "cuda"  # with CUBLAS_WORKSPACE_CONFIG=:4096:8


def seeded(seed):
    return torch.Generator().manual_seed(seed)


class ByEpoch(torch.utils.data.Sampler):  # type: ignore[misc]
    """Lightning tells it each epoch."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(len(self), generator=seeded(self.epoch)).tolist())

    def __len__(self):
        return BATCHES * ROWS


class Model(LightningModule):  # type: ignore[misc]
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1), torch.nn.Flatten(0)
        )

    def training_step(self, batch, number):
        torch.manual_seed(self.global_step)
        Path("steps").touch()
        rows = batch[0]
        time.sleep(0 if Path("hurry").exists() else 0.05)
        last = self.current_epoch == EPOCHS - 1 and number == BATCHES - 1
        while last and not Path("hurry").exists():  # it does not end before it may
            Path("steps").touch()
            time.sleep(0.05)
        return ((self.net(rows) - rows.sum(1)) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


torch.set_num_threads(1)
torch.manual_seed(7)
model = Model()
rows = torch.utils.data.TensorDataset(torch.randn(BATCHES * ROWS, 16, generator=seeded(7)))
saves = ModelCheckpoint(dirpath=os.environ["MOORINGS_CHECKPOINT_DIR"])
trainer = Trainer(
    max_epochs=EPOCHS,
    callbacks=[saves],
    accelerator="gpu" if CUDA else "cpu",
    devices=1,
    deterministic=True,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = torch.utils.data.DataLoader(rows, batch_size=ROWS, sampler=ByEpoch())
trainer.fit(model, loader, ckpt_path=os.environ.get("MOORINGS_RESUME_FROM"))
weights = b"".join(each.cpu().numpy().tobytes() for each in model.state_dict().values())
print(f"epoch {EPOCHS} weights {hashlib.sha256(weights).hexdigest()}", flush=True)
