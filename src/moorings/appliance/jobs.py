"""The jobs of a workflow in the controller's form. Values only."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from moorings.appliance.job_spec import ApplianceJobSpec
from moorings.appliance.workflow_config import GIB, MEMORY, WorkflowConfig
from moorings.core.model.claims import CheckpointContract
from moorings.wire.shapes import ClaimRequest
from moorings.workloads.appliance import APPLIANCE_KIND, ApplianceJobType, WorkflowPart
from moorings.workloads.jobs import Accelerators, JobSpec

GRACE_S: Final = 20.0  # between TERM and KILL: time for a checkpoint, and less than the 30 s before Slurm's limit
_PASSED_ON: Final = ("PATH", "HOME", "USER", "LANG", "TMPDIR", "VIRTUAL_ENV", "XDG_CACHE_HOME")


def build_appliance_job(
    order: ApplianceJobSpec,
    wish: WorkflowConfig,
    *,
    script: Path,
    folder: Path,
    workflow: str,
    environment: Mapping[str, str],
    lease_s: float,
    memory: bool,
    time_limit_s: float | None,
) -> JobSpec:
    """The job for an order: one task without a system to compile, a task on each system to execute.

    Args:
        order: the specification.
        wish: its workflow.
        script: the user's program, absolute.
        folder: the working folder, absolute.
        workflow: ``wflow-...``.
        environment: of this process; a job gets the paths to programs and files, and none of its secrets.
        lease_s: the follower renews the lease within this time.
        memory: whether the appliance manages its management node's memory.
        time_limit_s: seconds it may run, or None.
    """
    compiles = order.act == "compile"
    return JobSpec(
        name=f"{order.act}-{order.program}" if compiles else order.act,
        command=(
            *(sys.executable, "-P", "-m", "moorings.appliance.task"),  # -P: imports nothing from the working folder
            *("--script", str(script), "--order", str(order.spec_file)),
        ),
        workdir=str(folder),
        environment=job_variables(environment, wish.python_paths, folder),
        tasks=1 if compiles else order.systems,
        accelerators=Accelerators(
            kind=APPLIANCE_KIND,
            size=0 if compiles else order.systems,
            resources=_resources(wish, memory, compiles=compiles),
        ),
        priority=wish.priority,
        time_limit_s=time_limit_s,
        checkpoint=CheckpointContract(resumable=not compiles, warn_s=0.0, grace_s=GRACE_S),
        checkpoint_directory=order.model_dir,
        labels=wish.labels,
        lease_s=lease_s,
        appliance=WorkflowPart(ApplianceJobType.COMPILE if compiles else ApplianceJobType.EXECUTE, workflow),
    )


def build_reservation(wish: WorkflowConfig, *, lease_s: float, memory: bool) -> ClaimRequest:
    """A claim on the systems of a workflow; its jobs run one after the other within it."""
    return ClaimRequest(
        size=wish.config.num_csx,
        accelerator=APPLIANCE_KIND,
        gcds=wish.config.num_csx,
        resources=_resources(wish, memory, compiles=False),
        priority=wish.priority,
        lease_s=lease_s,
    )


def job_variables(environment: Mapping[str, str], python_paths: tuple[str, ...], folder: Path) -> dict[str, str]:
    """The variables of a job: the paths of programs, files and modules, and the text encoding."""
    kept = {name: value for name, value in environment.items() if name in _PASSED_ON or name.startswith("LC_")}
    ours = [str(folder / each) for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    if python_paths or ours:
        kept["PYTHONPATH"] = os.pathsep.join([*python_paths, *ours])
    return kept


def _resources(wish: WorkflowConfig, memory: bool, *, compiles: bool) -> dict[str, int]:
    if not memory:
        return {}
    return {MEMORY: (wish.config.compile_memory_gi if compiles else wish.config.execute_memory_gi) * GIB}
