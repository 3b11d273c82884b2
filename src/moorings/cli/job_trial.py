"""``moor doctor --job``: tries a job's checkpoint contract on real devices before it matters.

The job is started on as few devices as it can have, paused, resumed and paused again. It saves into a folder of its own
beside the real one, so that no checkpoint of the job is touched.
"""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from moorings.client.client import Client
from moorings.client.jobs import job_shape
from moorings.core.model.quantities import duration_text
from moorings.core.model.timestamps import seconds_between
from moorings.doctor.checks import JOB_CHECKS
from moorings.doctor.findings import FAIL, PASS, SKIP, WARN, Finding
from moorings.terminal.durations import Deadline
from moorings.wire.codec import parse_time
from moorings.wire.shapes import CheckpointBody, PauseRequest, RunBody, RunRequest
from moorings.workloads.jobs import Accelerators, JobSpec
from moorings.workloads.runs import ENDED, RunState

LOOK_S = 0.5
STOPS_S = 60.0  # longest time from KILL until its end is known
TRIAL_SUFFIX = "-trial"
_ON_ITS_OWN = (
    "let it work on after it has saved, or exit with 85 ('run me again'); if it was just done, shorten --works"
)


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """How long the trial takes.

    Attributes:
        works_s: how long each attempt works before it is paused.
        limit_s: longest time of each step: until it starts, saves, resumes.
    """

    works_s: float
    limit_s: float


def trial_job(job: JobSpec) -> JobSpec:
    """The job on one device a task (if it needs any), with a folder of checkpoints of its own."""
    directory = job.checkpoint_directory
    wanted = job.accelerators
    return replace(
        job,
        name=f"{job.name[: 63 - len(TRIAL_SUFFIX)]}{TRIAL_SUFFIX}",
        accelerators=Accelerators(wanted.kind, job.tasks, job.tasks, wanted.pool, wanted.resources)
        if job.needs_devices
        else wanted,
        checkpoint_directory=f"{directory.rstrip('/')}{TRIAL_SUFFIX}" if directory is not None else None,
        preemptible=False,
    )


def check_contract(job: JobSpec) -> list[Finding]:
    """The findings before anything is started; empty: the trial can begin."""
    if not job.checkpoint.resumable:
        fix = "'resumable = true' in [checkpoint] of the job file, if it resumes from its checkpoints"
        return _stopped([Finding("job.starts", FAIL, "the job does not say that it is resumable", fix)])
    if job.checkpoint_directory is None:
        return _stopped([Finding("job.starts", FAIL, "the job names no folder", "'directory' in [checkpoint]")])
    fault = folder_fault(job.checkpoint_directory)
    if fault:
        fix = "'directory' in [checkpoint] names the folder itself"
        return _stopped([Finding("job.starts", FAIL, fault, fix)])
    return []


def folder_fault(directory: str) -> str:
    """Return why no look can be had at the job's own folder, as far as this machine has it; empty: nothing is known."""
    try:
        mode = Path(directory).lstat().st_mode
    except OSError:  # it is not made yet, or not this user's to see
        return ""
    if stat.S_ISLNK(mode):
        return f"{directory} is a symbolic link, and links are not followed"
    return "" if stat.S_ISDIR(mode) else f"{directory} is no folder"


def try_job(client: Client, job: JobSpec, times: TrialTimes, report: Callable[[str], None]) -> list[Finding]:
    """Start the job, pause it, resume it, and cancel it; the findings in the order of ``JOB_CHECKS``.

    Raises:
        MooringsError: the controller refuses the job, or does not answer.
    """
    found = check_contract(job)
    if found:
        return found
    run = client.create_run(RunRequest(job=job_shape(trial_job(job))))
    try:
        return _stopped(_try_run(client, run, times, report))
    finally:
        client.cancel_run(run.id)


def _try_run(client: Client, run: RunBody, times: TrialTimes, report: Callable[[str], None]) -> list[Finding]:
    report(f"{run.id}: waits to start")
    first = _work(client, run.id, times)
    if first.state != RunState.RUNNING:
        return [Finding("job.starts", FAIL, _not_running(first), f"moor describe run {run.id}")]
    found = [Finding("job.starts", PASS, f"{run.id} ran for {duration_text(times.works_s)} on devices {first.devices}")]
    report(f"{run.id}: is told to save")
    paused = _pause(client, run, times)
    found.append(judge_save(paused))
    whole = paused.resume_point
    if paused.state != RunState.PAUSED or whole is None:
        return found
    report(f"{run.id}: resumes from {whole.path}")
    client.resume_run(run.id)
    second = _work(client, run.id, times)
    if second.state == RunState.RUNNING:
        report(f"{run.id}: is told to save again")
        second = _pause(client, run, times)
    found.append(judge_resume(whole, second))
    return found


def _work(client: Client, ident: str, times: TrialTimes) -> RunBody:
    """The run once it has worked for a while, or as it is when it has ended or the time is up."""
    limit = Deadline(times.limit_s)
    run = client.get_run(ident)
    while run.state not in ENDED and run.state != RunState.RUNNING and not limit.is_over:
        time.sleep(LOOK_S)
        run = client.get_run(ident)
    works = Deadline(times.works_s)
    while run.state == RunState.RUNNING and not works.is_over:
        time.sleep(min(LOOK_S, works.remaining_s(LOOK_S)))
        run = client.get_run(ident)
    return run


def _pause(client: Client, run: RunBody, times: TrialTimes) -> RunBody:
    """The run once it is PAUSED or has ended: a program that never saves is stopped when its time to save is over."""
    contract = run.job.checkpoint
    save_s = min(contract.warn_s, times.limit_s)
    limit = Deadline(save_s + contract.grace_s + STOPS_S)
    run = client.pause_run(run.id, PauseRequest(save_timeout_s=save_s))
    while run.state not in ENDED and run.state != RunState.PAUSED and not limit.is_over:
        time.sleep(LOOK_S)
        run = client.get_run(run.id)
    return run


def _not_running(run: RunBody) -> str:
    if run.state in ENDED:
        return f"it ended before it could be paused: {run.state}{f', {run.detail}' if run.detail else ''}"
    return f"it is {run.state}: {run.reason.sentence if run.reason is not None else 'not started yet'}"


def judge_save(run: RunBody) -> Finding:
    """Whether the job saved a whole checkpoint at its warning."""
    check = "job.saves"
    if run.state in ENDED:
        code = f" with {run.exit_code}" if run.exit_code is not None else ""
        return Finding(check, FAIL, f"it ended{code} when it was warned, and counts as {run.state}", _ON_ITS_OWN)
    if run.state != RunState.PAUSED or run.pause is None:
        return Finding(check, FAIL, f"it is {run.state}: it does not stop", "its own log may say why: moor logs")
    if run.checkpoint_fault:
        return Finding(check, FAIL, run.checkpoint_fault, "let the job's user own a folder there")
    whole = run.resume_point
    if whole is None:
        torn = next(iter(run.checkpoints or ()), None)
        why = f"{torn.path} is not whole: {torn.why}" if torn is not None else "there is no checkpoint"
        return Finding(check, FAIL, why, "the program saves into the folder of MOORINGS_CHECKPOINT_DIR")
    after_s = seconds_between(parse_time(run.pause.asked_at), parse_time(whole.written_at))
    named = f"{_name(whole)} is whole ({whole.rule})"
    if after_s < 0:
        evidence = f"{named}, and {duration_text(-after_s)} older than the warning: it saves nothing at a warning"
        return Finding(check, WARN, evidence, "save at USR2, USR1 or TERM, or every few minutes")
    return Finding(check, PASS, f"{named}, {after_s:.1f} s after the warning")


def judge_resume(given: CheckpointBody, run: RunBody) -> Finding:
    """Whether the second attempt continued from the checkpoint that it was given."""
    check, fix = "job.resumes", "the program reads MOORINGS_RESUME_FROM, or gets it by 'resume_arg' in [checkpoint]"
    if run.state == RunState.SUCCEEDED:
        return Finding(check, PASS, f"it was given {_name(given)}, and came to its end")
    if run.state in ENDED:
        return Finding(check, FAIL, f"its second attempt ended: {run.state}, {run.detail}", fix)
    since = parse_time(given.written_at)
    newer = [one for one in run.checkpoints or () if one.whole and parse_time(one.written_at) > since]
    if not newer:
        return Finding(check, WARN, f"it was given {_name(given)}, and saved nothing since", f"moor logs {run.id}")
    if given.step is None or any(one.step is None for one in newer):
        evidence = f"it was given {_name(given)} and saved {_name(newer[0])}: their names tell no step"
        return Finding(check, WARN, evidence, f"moor logs {run.id}")
    first = min(one.step or 0 for one in newer)
    if first < given.step:
        return Finding(
            check, FAIL, f"it was given step {given.step}, and saved step {first} since: it began again", fix
        )
    return Finding(check, PASS, f"it was given step {given.step}, and then saved step {newer[0].step}")


def _name(one: CheckpointBody) -> str:
    return one.path.rpartition("/")[2]


def _stopped(found: Sequence[Finding]) -> list[Finding]:
    """The findings, and what was not tried because of them."""
    known = {finding.id for finding in found}
    return [*found, *(Finding(check, SKIP, "it was not tried") for check in JOB_CHECKS if check not in known)]
