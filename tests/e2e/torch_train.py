"""A plain PyTorch training, as people write them: Adam, dropout, a seed, torch.save into a folder.

It saves every fifth step and at USR2, straight to the final name: a kill may leave a torn file. Its last line holds the
loss and a digest of all weights, bit for bit.
"""

import hashlib
import os
import signal
import sys
import time
from pathlib import Path

import torch  # type: ignore[import-not-found]

STEPS, SAVE_EVERY = int(sys.argv[1]), 5
SAVES = Path(os.environ["MOORINGS_CHECKPOINT_DIR"])
DEVICE = os.environ.get("WITNESS_DEVICE", "cpu")  # for cuda with CUBLAS_WORKSPACE_CONFIG=:4096:8

wanted = False


def on_warning(*_):
    global wanted
    wanted = True


def save(step):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}
    if DEVICE == "cuda":
        state["cuda_random"] = torch.cuda.get_rng_state()
    torch.save({"step": step, **state}, SAVES / f"step-{step}.pt")


signal.signal(signal.SIGUSR2, on_warning)
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
torch.manual_seed(7)
model = torch.nn.Sequential(
    torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1), torch.nn.Flatten(0)
).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
step, loss = 0, torch.zeros(())
if "MOORINGS_RESUME_FROM" in os.environ:
    state = torch.load(os.environ["MOORINGS_RESUME_FROM"], map_location="cpu")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    if DEVICE == "cuda":
        torch.cuda.set_rng_state(state["cuda_random"])
    step = state["step"]
    print(f"from step {step}", flush=True)
while step < STEPS:
    while step == STEPS - 1 and not Path("hurry").exists():  # it does not end before it may
        Path("steps").touch()
        if wanted:
            wanted = False
            save(step)
        time.sleep(0.05)
    Path("steps").touch()
    rows = torch.randn(32, 16).to(DEVICE)
    loss = ((model(rows) - rows.sum(1)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if wanted or step % SAVE_EVERY == 0:
        wanted = False
        save(step)
    time.sleep(0 if Path("hurry").exists() else 0.05)
digest = hashlib.sha256(b"".join(each.cpu().numpy().tobytes() for each in model.state_dict().values())).hexdigest()
print(f"step {step} loss {loss.item().hex()} weights {digest}", flush=True)
