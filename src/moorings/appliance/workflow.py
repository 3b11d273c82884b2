"""The jobs of one start of ``run.py``: their order in each mode, and what they pass on."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from moorings.appliance.checkpoints import CheckpointFile, find_newest
from moorings.appliance.console import format_count, format_seconds
from moorings.appliance.job_follower import LEAD_S, describe_systems, wait_for_systems
from moorings.appliance.job_spec import ApplianceJobSpec, DataSplit, JobAction
from moorings.appliance.jobs import build_reservation
from moorings.appliance.run_meta import RunMetaFile
from moorings.appliance.runner import STOPPED, ControllerClients, JobRunner, LaunchContext, WorkflowEnded
from moorings.appliance.workflow_config import WorkflowConfig, params_error
from moorings.core.model.claims import ENDED as CLAIM_ENDED
from moorings.core.model.errors import MooringsError
from moorings.ports.clock import random_id
from moorings.ports.mirror import Mirror
from moorings.terminal.interrupts import Interrupted
from moorings.terminal.progress import Progress
from moorings.wire.errors import ExitCode
from moorings.wire.shapes import ClaimRequest, RunBody
from moorings.workloads.appliance import priority_bucket
from moorings.workloads.runs import ENDED


class Workflow:
    """One workflow; ``run`` once.

    Args:
        wish: its configuration.
        controllers: its clients.
        progress: where to report.
        mirror: shows jobs elsewhere.
        show: receives the jobs' output.
        start: the context of this process.
    """

    def __init__(
        self,
        wish: WorkflowConfig,
        controllers: ControllerClients,
        progress: Progress,
        mirror: Mirror,
        *,
        show: Callable[[bytes], None],
        start: LaunchContext,
    ) -> None:
        self._wish = wish
        self._client = controllers.client
        self._progress = progress
        self._mirror = mirror
        self._start = start
        self._name = f"wflow-{random_id(22)}"
        self._record = RunMetaFile(wish.model_dir)
        self._jobs = JobRunner(wish, self._name, controllers, progress, mirror, self._record, show=show, start=start)
        self._orders = 0
        self._reservation_request: tuple[ClaimRequest, str] | None = None  # a reservation that may have been created

    def run(self, begin: CheckpointFile | None) -> int:
        """Run all jobs, from that checkpoint on; return the exit code."""
        wish = self._wish
        try:
            if self._cancel_previous_jobs() and wish.checkpoint is None:  # its work until now is not lost
                begin, _ = find_newest(wish.model_dir)
            if is_done(wish, begin, self._progress):
                return 0
            systems = format_count(wish.config.num_csx, "system")
            bucket = priority_bucket(wish.priority)
            self._jobs.start_message = f"{self._name}  {wish.mode} on {systems}, priority {bucket}, in {wish.model_dir}"
            self._run_stages(begin)
        except WorkflowEnded as over:
            return over.code
        except Interrupted as stop:
            self._jobs.interrupt(stop)
            return stop.exit_code
        except MooringsError as error:
            raise self._jobs.with_job_hint(error) from error
        except BaseException:
            self._jobs.cancel_quietly()
            raise
        finally:
            self._jobs.lease_renewer.stop()
            self._release()
        return 0

    # -- stages --------------------------------------------------------------------------------------------------------

    def _run_stages(self, begin: CheckpointFile | None) -> None:
        wish = self._wish
        sides: tuple[DataSplit, ...] = tuple(side for side in ("train", "eval") if side in wish.mode.split("_"))
        artifacts = {side: self._compile(side) for side in sides}
        if wish.compile_only:
            self._progress.report(f"{self._name}  compiled; nothing was executed (--compile_only)")
            return
        if wish.mode == "eval":
            assert begin is not None, "it was looked for"
            self._evaluate(artifacts["eval"], begin)
            return
        if wish.mode == "train":
            self._train(artifacts["train"], begin, wish.last_step)
            return
        self._reserve()
        for last_step in training_segments(
            begin.step if begin is not None else 0, wish.last_step, wish.config.eval_frequency
        ):
            begin = self._train(artifacts["train"], begin, last_step)
            self._evaluate(artifacts["eval"], begin)

    def _compile(self, side: DataSplit) -> str:
        """Compile a program; return its key."""
        order = self._build_job_spec("compile", side)
        ended = self._jobs.run_job(order)
        answer = read_result(order)
        how = "found in the cache" if answer.get("found") else f"made in {format_seconds(float(answer['seconds']))}"
        self._jobs.report_end(ended, f"program {str(answer['artifact'])[:12]} {how}")
        return str(answer["artifact"])

    def _train(self, artifact: str, begin: CheckpointFile | None, last_step: int) -> CheckpointFile:
        """Train until that step; return the checkpoint at its end."""
        order = self._build_job_spec("train", "train", artifact, begin, last_step)
        ended = self._jobs.run_job(order)
        answer = read_result(order)
        made = CheckpointFile(Path(str(answer["checkpoint"])), int(answer["step"]))
        self._jobs.report_end(ended, f"step {made.step}, loss {float(answer['loss']):.4f}, {made.path.name}")
        return made

    def _evaluate(self, artifact: str, begin: CheckpointFile) -> None:
        order = self._build_job_spec("eval", "eval", artifact, begin, self._wish.config.eval_steps)
        ended = self._jobs.run_job(order)
        answer = read_result(order)
        batches = format_count(int(answer["batches"]), "batch", "batches")
        self._jobs.report_end(ended, f"step {int(answer['step'])}, loss {float(answer['loss']):.4f} over {batches}")

    def _build_job_spec(
        self,
        act: JobAction,
        side: DataSplit,
        artifact: str | None = None,
        begin: CheckpointFile | None = None,
        last_step: int = 0,
    ) -> ApplianceJobSpec:
        self._orders += 1
        wish = self._wish
        name = f"{self._orders:02d}-{act}-{side}" if act == "compile" else f"{self._orders:02d}-{act}"
        return ApplianceJobSpec(
            act=act,
            program=side,
            params=wish.params,
            model_dir=str(wish.model_dir),
            compile_dir=str(wish.compile_dir),
            folder=str(wish.model_dir / "jobs" / self._name / name),
            systems=wish.config.num_csx,
            weight_servers=wish.config.num_wgt_servers,
            artifact=artifact,
            first_step=begin.step if begin is not None else 0,
            last_step=last_step,
            checkpoint=str(begin.path) if begin is not None else None,
            mount_dirs=wish.mount_dirs,
        )

    # -- the reservation -----------------------------------------------------------------------------------------------

    def _reserve(self) -> None:
        """Hold the systems for this workflow until ``_release``."""
        request = build_reservation(self._wish, lease_s=self._start.lease_s, memory=self._start.memory)
        self._reservation_request = (request, secrets.token_hex(16))
        claim = self._jobs.reservation = self._client.create_claim(*self._reservation_request)
        self._jobs.lease_renewer.add(claim.id, self._name)
        watch = self._mirror.watch_limit(self._jobs.cancel_externally, LEAD_S)
        try:
            claim = wait_for_systems(self._client, self._progress, claim.id, f"{self._name}  reservation  ")
        finally:
            watch.stop()
        if claim.state in CLAIM_ENDED:
            why = self._jobs.cancel_reason or (claim.reason.message if claim.reason is not None else "it was released")
            self._progress.report(f"{self._name}  the reservation of its systems has ended: {why}")
            raise WorkflowEnded(STOPPED if self._jobs.cancel_reason else ExitCode.FAILED)
        self._progress.report(f"{self._name}  reserved for its jobs: {describe_systems(claim.devices or '')}")

    def _release(self) -> None:
        """Release the systems; if that fails, the lease expires."""
        if self._reservation_request is None:
            return
        wanted, self._reservation_request = self._reservation_request, None
        try:
            claim = self._jobs.reservation or self._client.create_claim(*wanted)
            self._client.delete_claim(claim.id)
        except MooringsError as error:
            if error.code not in ("claim.ended", "claim.unknown"):
                self._progress.report(f"{self._name}  its systems go with their lease: {error.detail}")

    # -- earlier starts ------------------------------------------------------------------------------------------------

    def _cancel_previous_jobs(self) -> bool:
        """Cancel jobs of an earlier start, for two must not train in one folder; return whether there was any."""
        try:
            note = self._record.load()
            if note is not None:
                self._progress.report(note)
            left = self._record.list_unfinished()
            for ident, workflow in left:
                self._record.mark_ended(self._cancel_previous_job(ident, workflow), ident)
        except OSError as error:
            problem = f"model_dir: run_meta.json: {error.strerror or error}"
            raise params_error(self._wish.origin_of("model_dir"), problem) from error
        return bool(left)

    def _cancel_previous_job(self, ident: str, workflow: str) -> RunBody | None:
        try:
            job = self._client.get_run(ident)
            if job.state in ENDED:
                return job
            if not is_job_of_workflow(
                job, workflow, self._wish.model_dir
            ):  # the folder is a copy, or others write to it
                self._progress.report(f"{ident}  stands in run_meta.json, but is no job of this folder: left alone")
                return None
            self._progress.report(f"{ident}  of an earlier start still runs: cancelling it")
            job = self._client.cancel_run(ident)
            while job.state not in ENDED:
                job = self._client.get_run(ident, wait_s=5.0)
            return job
        except MooringsError as error:
            if error.code != "run.unknown":
                raise
            return None


def is_job_of_workflow(job: RunBody, workflow: str, model_dir: Path) -> bool:
    """Whether a job in a folder's record is of that workflow, and in that folder."""
    part, folder = job.job.appliance, job.job.checkpoint_directory
    if part is None or part.workflow != workflow or folder is None:
        return False
    try:
        return Path(folder).samefile(model_dir)
    except OSError:
        return False


def training_segments(first_step: int, last_step: int, frequency: int | None) -> Iterator[int]:
    """The steps at which training stops to evaluate: every multiple of ``frequency``, and the last one."""
    every = frequency or last_step
    step = first_step
    while step < last_step:
        step = min(last_step, (step // every + 1) * every)
        yield step


def is_done(wish: WorkflowConfig, begin: CheckpointFile | None, progress: Progress) -> bool:
    """Whether nothing is left to train; reports that."""
    if wish.compile_only or not wish.includes_training or begin is None or begin.step < wish.last_step:
        return False
    done = f"{begin.path.name} has {begin.step} steps, and max_steps is {wish.last_step}"
    progress.report(f"nothing is left to do: {done}")
    return True


# -- results -----------------------------------------------------------------------------------------------------------
# The results of jobs, in files beside their specifications.

ANSWER_BYTES_MAX: Final = 1 << 20


def read_result(order: ApplianceJobSpec) -> dict[str, Any]:
    """The result that a job has written.

    Raises:
        MooringsError: ``answer.invalid``.
    """
    wanted = {"compile": ("artifact", "seconds"), "train": ("step", "loss", "checkpoint")}
    try:
        with order.result_file.open("rb") as file:
            answer = json.loads(file.read(ANSWER_BYTES_MAX))
        missing = [name for name in wanted.get(order.act, ("step", "loss", "batches")) if name not in answer]
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise MooringsError("answer.invalid", f"the job wrote no answer that can be read: {error}") from error
    if missing or not isinstance(answer, dict):
        raise MooringsError("answer.invalid", f"{order.result_file} does not tell: {', '.join(missing)}")
    return answer
