"""A training in NumPy alone, which images of these tests can run: momentum, a stream of random numbers, `.npz` files.

It saves every fifth step and at TERM, straight to the final name: a kill may leave a torn file. Its last line holds the
loss and a digest of the weights, bit for bit.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

STEPS, SAVE_EVERY = int(sys.argv[1]), 5
SAVES = Path(os.environ["MOORINGS_CHECKPOINT_DIR"])

stopping = False


def on_term(*_words: object) -> None:
    global stopping
    stopping = True


def save(step: int) -> None:
    state = json.dumps(random.bit_generator.state)
    np.savez(SAVES / f"step-{step}.npz", step=step, weights=weights, velocity=velocity, random=np.array(state))


signal.signal(signal.SIGTERM, on_term)
random = np.random.default_rng(7)
weights, velocity, step, loss = np.zeros(16), np.zeros(16), 0, 0.0
if "MOORINGS_RESUME_FROM" in os.environ:
    with np.load(os.environ["MOORINGS_RESUME_FROM"]) as state:
        weights, velocity, step = state["weights"], state["velocity"], int(state["step"])
        random.bit_generator.state = json.loads(str(state["random"]))
    print(f"from step {step}", flush=True)
while step < STEPS:
    while step == STEPS - 1 and not Path("hurry").exists() and not stopping:  # it does not end before it may
        time.sleep(0.05)
    if stopping:
        save(step)
        sys.exit(143)
    rows = random.standard_normal((32, 16))
    error = rows @ weights - rows.sum(1)
    loss = float((error**2).mean())
    velocity = 0.9 * velocity - 0.01 * (rows * error[:, None]).mean(0)
    weights = weights + velocity
    step += 1
    if step % SAVE_EVERY == 0:
        save(step)
    time.sleep(0 if Path("hurry").exists() else 0.05)
print(f"step {step} loss {loss.hex()} weights {hashlib.sha256(weights.tobytes()).hexdigest()}", flush=True)
