"""A JAX training, as people write them: Orbax's CheckpointManager saves every fifth step, beside the training.

The rows and the dropout of a step depend on its number alone. The last line holds a digest of all weights.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

CUDA = os.environ.get("WITNESS_DEVICE") == "cuda"
os.environ["JAX_PLATFORMS"] = "cuda" if CUDA else "cpu"
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
if CUDA:
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import orbax.checkpoint as ocp  # type: ignore[import-not-found] # noqa: E402

STEPS = int(sys.argv[1])


def loss(weights, key):
    rows_key, dropout_key = jax.random.split(key)
    rows = jax.random.normal(rows_key, (32, 16))
    hidden = jax.nn.relu(rows @ weights["in"])
    hidden = jnp.where(jax.random.bernoulli(dropout_key, 0.8, hidden.shape), hidden / 0.8, 0.0)
    return jnp.mean(((hidden @ weights["out"])[:, 0] - rows.sum(1)) ** 2)


@jax.jit
def train(state, step):
    slopes = jax.grad(loss)(state["weights"], jax.random.fold_in(jax.random.key(7), step))
    speed = jax.tree.map(lambda old, slope: 0.9 * old + slope, state["speed"], slopes)
    return {"weights": jax.tree.map(lambda old, new: old - 1e-3 * new, state["weights"], speed), "speed": speed}


in_key, out_key = jax.random.split(jax.random.key(7))
weights = {"in": jax.random.normal(in_key, (16, 64)) / 4, "out": jax.random.normal(out_key, (64, 1)) / 8}
step, state = 0, {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights)}
more = {}
if "WITNESS_COMMIT_FILE" in os.environ:
    more["temporary_path_class"] = ocp.path.atomicity.CommitFileTemporaryPath
options = ocp.CheckpointManagerOptions(save_interval_steps=5, max_to_keep=3, **more)
with ocp.CheckpointManager(os.environ["MOORINGS_CHECKPOINT_DIR"], options=options) as manager:
    if "MOORINGS_RESUME_FROM" in os.environ:
        step = int(Path(os.environ["MOORINGS_RESUME_FROM"]).name)
        state = manager.restore(step, args=ocp.args.StandardRestore(state))
        print(f"from step {step}", flush=True)
    while step < STEPS:
        Path("steps").touch()
        while step == STEPS - 1 and not Path("hurry").exists():  # it does not end before it may
            Path("steps").touch()
            time.sleep(0.05)
        state = train(state, step)
        step += 1
        manager.save(step, args=ocp.args.StandardSave(state))
        time.sleep(0 if Path("hurry").exists() else 0.05)
digest = hashlib.sha256(b"".join(jax.device_get(each).tobytes() for each in jax.tree.leaves(state["weights"])))
print(f"step {step} weights {digest.hexdigest()}", flush=True)
