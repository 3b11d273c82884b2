"""Trainings of real frameworks, as jobs: their scripts lie beside this file, and run undisturbed and disturbed.

PyTorch is Debian's; Lightning, Transformers and Orbax come from PyPI (``tests.packages``); JAX is in our environment.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from moorings.core.model.claims import CheckpointContract
from moorings.workloads.jobs import JobSpec
from tests import debian
from tests.e2e.rig import job
from tests.e2e.test_resume import digits
from tests.packages import packages_of
from tests.sampling import whole

LENGTH = (
    3 if whole() else 1
)  # of a light training, so that it lasts for all disturbances, on a machine that is busy, too
DEBIANS_PYTHON = "/usr/bin/python3.11"
TORCH = ("python3-torch", "libtorch1.13", "ocl-icd-libopencl1", "python3-numpy", "python3-typing-extensions")
BESIDE_TORCH = ("python3-astunparse", "python3-future", "python3-six")
TORCH_WITNESSES = Path(__file__).with_name("torch_witnesses.txt")
ORBAX_WITNESS = Path(__file__).with_name("orbax_witness.txt")


def long_digits(folder: Path) -> JobSpec:
    """The example."""
    return digits(folder, epochs=200 * LENGTH)


def torch(folder: Path) -> JobSpec:
    """A plain PyTorch training."""
    return _training(folder, DEBIANS_PYTHON, "torch_train.py", 300 * LENGTH, _torch_modules())


def lightning(folder: Path) -> JobSpec:
    return _training(folder, DEBIANS_PYTHON, "lightning_train.py", 250, _torch_modules(TORCH_WITNESSES))


def hf_trainer(folder: Path) -> JobSpec:
    """It reads no variable of ours: ``resume_arg`` gives it the checkpoint."""
    wanted = _training(folder, DEBIANS_PYTHON, "hf_train.py", 1000, _torch_modules(TORCH_WITNESSES))
    return replace(wanted, resume_args=("--resume_from_checkpoint", "{}"))


def orbax(folder: Path) -> JobSpec:
    modules = packages_of(ORBAX_WITNESS, sys.executable)
    return _training(folder, sys.executable, "orbax_train.py", 1000, {"PYTHONPATH": str(modules)})


def _training(folder: Path, python: str, script: str, length: int, modules: dict[str, str]) -> JobSpec:
    """A training for a guest; its last argument is its length in steps or epochs."""
    wanted = job(python, str(Path(__file__).with_name(script)), str(length), size=2)
    return replace(
        wanted,
        workdir=str(folder),
        project="guest",
        preemptible=True,
        environment={"PATH": os.environ["PATH"], **modules},
        checkpoint=CheckpointContract(resumable=True, grace_s=4.0),
        checkpoint_directory=str(folder / "checkpoints"),
    )


def _torch_modules(requirements: Path | None = None) -> dict[str, str]:
    """The variables with which Debian's Python finds PyTorch, and more packages."""
    root = debian.folder_of(*TORCH, *BESIDE_TORCH)
    folders = [f"{root}/usr/lib/python3/dist-packages"]
    if requirements is not None:
        folders.insert(0, str(packages_of(requirements, DEBIANS_PYTHON)))
    return {"PYTHONPATH": ":".join(folders), "LD_LIBRARY_PATH": debian.libraries(root)}
