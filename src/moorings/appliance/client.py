"""Everything before the first job: the input is read and checked, and the model's folder is locked."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from moorings.appliance.arguments import Arguments
from moorings.appliance.checkpoints import CheckpointFile, find_newest
from moorings.appliance.console import DatedConsole, make_progress
from moorings.appliance.lease_renewal import BEATS_A_LEASE
from moorings.appliance.program import Program
from moorings.appliance.runner import ControllerClients, LaunchContext
from moorings.appliance.workflow import Workflow, is_done
from moorings.appliance.workflow_config import (
    WorkflowConfig,
    build_workflow_config,
    check_pools,
    create_folders,
    params_error,
    requires_memory,
)
from moorings.files import take_lock
from moorings.slurm.surrogate.mirror import find_mirror
from moorings.terminal.context import CommandContext
from moorings.terminal.interrupts import Interrupted, SignalsAsExceptions
from moorings.terminal.patience import make_patience


def run_workflow(
    program: Program,
    arguments: Arguments,
    session: CommandContext,
    console: DatedConsole,
    *,
    script: Path,
    lease_s: float,
) -> int:
    """Check everything, run the jobs, follow them; return the exit code.

    Raises:
        MooringsError: the input is invalid (``params.invalid``, ...), or the controller does not respond.
        OutputClosed: the reader of the output has closed it; the jobs have been cancelled.
    """
    progress = make_progress(console)
    with SignalsAsExceptions():
        try:
            wish = build_workflow_config(arguments, program, session.environment, Path.cwd())
            begin = _find_start_checkpoint(wish, console)
            client = session.client
            pools = client.list_pools()
            check_pools(wish, pools)
            create_folders(wish)  # the last of all checks, for it leaves folders behind
            if wish.validate_only:
                if not is_done(wish, begin, progress):
                    progress.report(f"{wish.source}: all is well; nothing was queued")
                return 0
            client.retry_policy = make_patience(progress)
            with _lock_model_dir(wish.model_dir, wish.origin_of("model_dir")):
                workflow = Workflow(
                    wish,
                    ControllerClients(client, lambda: session.new_client(timeout_s=lease_s / BEATS_A_LEASE)),
                    progress,
                    find_mirror(session.environment, console.warn),
                    show=console.print_bytes,
                    start=LaunchContext(
                        script, Path.cwd(), session.environment, lease_s, memory=requires_memory(pools)
                    ),
                )
                return workflow.run(begin)
        except Interrupted as stop:  # before there was anything to cancel, or while the systems were released
            progress.report(f"{stop.name}: ended")
            return stop.exit_code


def _find_start_checkpoint(wish: WorkflowConfig, console: DatedConsole) -> CheckpointFile | None:
    """The checkpoint to start from: the named one, or the newest intact one."""
    if wish.checkpoint is not None:
        return wish.checkpoint
    try:
        newest, damaged = find_newest(wish.model_dir)
    except OSError as error:
        problem = f"model_dir: {wish.model_dir} cannot be read: {error.strerror}"
        raise params_error(wish.origin_of("model_dir"), problem) from error
    for warning in damaged:
        console.warn(warning)
    if newest is None and wish.mode == "eval" and not wish.compile_only:
        problem = f"model_dir: {wish.model_dir} has no checkpoint to evaluate"
        raise params_error(wish.origin_of("model_dir"), problem, "train first, or name one with --checkpoint_path")
    return newest


@contextlib.contextmanager
def _lock_model_dir(folder: Path, where: str) -> Iterator[None]:
    """Keep a second ``run.py`` out of the model's folder; no effect where files cannot be locked."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # a network file system without locks
            if not take_lock(lock):
                problem = f"model_dir: {folder} is in use by another run.py"
                raise params_error(where, problem, "wait for its end, or take another folder")
        yield
    finally:
        os.close(lock)
