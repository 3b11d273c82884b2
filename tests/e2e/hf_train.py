"""A training with Hugging Face's Trainer, as people write them: a small GPT-2 made here, saved every third step.

An epoch has eight steps: it resumes in the midst of one. The Trainer saves the state of the random numbers itself. The
last line holds a digest of all weights.
"""

import argparse
import hashlib
import os
import time
from pathlib import Path

import torch  # type: ignore[import-not-found]

if torch.__version__.startswith("1."):  # Debian's cannot make a group of processes, which the Trainer would
    os.environ.pop("LOCAL_RANK", None)

from transformers import (  # type: ignore[import-not-found]
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

parser = argparse.ArgumentParser()
parser.add_argument("steps", type=int)
parser.add_argument("--resume_from_checkpoint")
asked = parser.parse_args()
cuda = os.environ.get("WITNESS_DEVICE") == "cuda"  # with CUBLAS_WORKSPACE_CONFIG=:4096:8


class Slowly(TrainerCallback):  # type: ignore[misc]
    def on_step_begin(self, args, state, control, **_):
        Path("steps").touch()
        time.sleep(0 if Path("hurry").exists() else 0.05)
        while state.global_step == asked.steps - 1 and not Path("hurry").exists():  # it does not end before it may
            Path("steps").touch()
            time.sleep(0.05)


torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
set_seed(7)
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2))
texts = torch.randint(0, 32, (32, 8), generator=torch.Generator().manual_seed(7))
settings = TrainingArguments(
    output_dir=os.environ["MOORINGS_CHECKPOINT_DIR"],
    max_steps=asked.steps,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    save_steps=3,
    save_total_limit=3,
    logging_steps=100,
    report_to=[],
    disable_tqdm=True,
    use_cpu=not cuda,
)
trainer = Trainer(
    model=model,
    args=settings,
    train_dataset=[{"input_ids": text, "labels": text} for text in texts],
    callbacks=[Slowly()],
)
trainer.train(resume_from_checkpoint=asked.resume_from_checkpoint)
weights = b"".join(each.cpu().numpy().tobytes() for each in model.state_dict().values())
print(f"step {asked.steps} weights {hashlib.sha256(weights).hexdigest()}", flush=True)
