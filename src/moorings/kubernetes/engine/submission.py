"""Makes the objects of a run: an IPUJob without a launcher, and the Secret of its variables. Pure.

The IPUJob is created without an instance, and activated by a change of that number: a newer leader can make that change
fail (``fence``). Variables stand in a Secret: fewer people may read Secrets than Pods, and unlike a Pod's own variables
its values are not expanded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from importlib.resources import files

from moorings.core.model.claims import NAME_CHARS_MAX
from moorings.core.model.serialization import from_plain, to_plain
from moorings.engines.launch import (
    describe_lost_functions,
    job_environment,
    rejected_error,
    signal_names,
    warn_signals,
)
from moorings.kubernetes.engine.checkpoint_containers import add_checkpoint_containers, unexpanded
from moorings.kubernetes.engine.run_folder import KubernetesRunFolder, SubmittedIPUJob
from moorings.kubernetes.engine.settings import KubernetesEngineSettings
from moorings.kubernetes.ipujob import names
from moorings.kubernetes.ipujob.fields import DEADLINE_S_MAX
from moorings.kubernetes.ipujob.types import API_VERSION, KIND, CleanPodPolicy, RestartType
from moorings.kubernetes.ipujob.validation import find_errors
from moorings.kubernetes.kube.api import KubeObject
from moorings.ports.engine import RunSubmission
from moorings.ports.store import Epoch
from moorings.workloads.jobs import JobSpec, claim_spec_for
from moorings.workloads.runs import RunId

AttemptKey = tuple[RunId, int]

ACCELERATOR = "ipu"
CONTAINER = "task"

RUN, ATTEMPT, INSTALLATION = "moorings/run", "moorings/attempt", "moorings/installation"  # labels
EPOCH, SUBMITTED_JOB = "moorings/epoch", "moorings/order"  # annotations

NODE_LOST_S = 300  # how long a node may be silent before a run with retries counts as lost, as Kubernetes waits, too
ATTENDED_S = 30.0  # a terminal counts as attended so long after 'moor' has said so, which it does every 10 s
START_S = 600  # of a start, in which images are pulled: our own time limit counts from the program's beginning

_AT_TERMINAL = files("moorings.kubernetes.engine").joinpath("at_terminal.sh").read_text(encoding="utf-8")
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_HASH_CHARS = 24


def check_job(job: JobSpec) -> None:
    """Raise unless Kubernetes can run the job.

    Raises:
        MooringsError: ``engine.rejected``.
    """
    if not job.image:
        raise rejected_error(
            "a run on Kubernetes needs a container image",
            'put image = "registry/name:tag" into the table [kubernetes] of the job file',
        )
    if job.accelerators.kind != ACCELERATOR:
        hint = "use the engine local for these, where the controller has a pool of them"
        raise rejected_error(
            f"IPUJobs have accelerators of kind ipu, and none of kind {job.accelerators.kind[:40]!r}", hint
        )
    if job.accelerators.size < 1:
        hint = "use the engine local or slurm, or make a Job of it with kubectl"
        raise rejected_error("a run on Kubernetes needs devices: an IPUJob has at least one IPU", hint)
    if job.accelerators.pool is not None:
        hint = "leave pool out of the job: the proxy takes the first that has room"
        raise rejected_error("a job on Kubernetes cannot choose a pool", hint)
    try:
        for text in (*job.command, job.workdir, *job.environment.values()):
            text.encode()
    except UnicodeEncodeError:
        raise rejected_error("a command, folder or variable is not UTF-8", "Kubernetes takes nothing else") from None
    warn_signals(job.checkpoint.warn_signal, to_yield=False)


def describe_differences(job: JobSpec, settings: KubernetesEngineSettings) -> tuple[str, ...]:
    """Parts of a job file that mean something else on Kubernetes than on one machine; sentences for its user."""
    told = [f"in Kubernetes it is an IPUJob of the namespace {settings.namespace_of(job.project)}, image {job.image}"]
    volume = settings.volume_of(job.workdir)
    if volume is None:
        told.append(
            f"its working folder {job.workdir} does not travel: there is what its image has, or an empty folder"
        )
    else:
        told.append(f"its working folder {job.workdir} is in {volume.path}, which is {volume.origin}")
    if job.checkpoint_directory is not None and settings.volume_of(job.checkpoint_directory) is None:
        told.append(f"its checkpoints in {job.checkpoint_directory} are lost when it ends: that is in no volume")
    if "PATH" in job.environment:
        told.append("PATH is that of whoever started it, and not what its image says")
    told += describe_lost_functions(job)
    if job.resources.nodes > 1:
        told.append("on which nodes its tasks run is Kubernetes' choice")
    if not settings.request_cpus and job.resources.cpus > 1:
        told.append("its CPUs are not asked of Kubernetes")
    if job.preemptible:
        told.append("Kubernetes warns it with TERM alone when others need what it has borrowed")
    if job.terminal_keep_s is not None and job.terminal_keep_s < ATTENDED_S:
        told.append(f"that its terminal is closed is noticed after {ATTENDED_S:g} s")
    if unseen := _unseen_reason(job, settings):
        told.append(f"{unseen}: it has to find them by itself when it starts again")
    return tuple(told)


def _unseen_reason(job: JobSpec, settings: KubernetesEngineSettings) -> str:
    """Why nobody sees the checkpoints of a job that resumes; empty: they are seen, or it does not."""
    if not job.checkpoint.resumable or settings.sees_checkpoints_of(job):
        return ""
    why = "the controller names no checkpoint_image" if not settings.checkpoint_image else "they are in no volume"
    return f"nobody sees its checkpoints, since {why}"


def name_of(run: RunId, attempt: int) -> str:
    """Name of an attempt's IPUJob: the run's id, or a hash of it if the id is no valid name."""
    name = run if attempt == 0 else f"{run}-{attempt}"
    if _DNS_LABEL.fullmatch(name) and len(name) <= NAME_CHARS_MAX:
        return name
    return f"run-{hashlib.sha256(f'{run}/{attempt}'.encode()).hexdigest()[:_HASH_CHARS]}"


def secret_name(job: str) -> str:
    """Name of the Secret with the variables of an IPUJob."""
    return f"{job}-environment"


def build_submitted_job(order: RunSubmission, settings: KubernetesEngineSettings) -> SubmittedIPUJob:
    """The part of an order that is needed later.

    Raises:
        MooringsError: ``engine.rejected``: the id is not valid for a run on Kubernetes.
    """
    if not KubernetesRunFolder.id_pattern.fullmatch(order.run):
        raise rejected_error(f"{order.run[:120]!r} cannot be the id of a run on Kubernetes")
    job, contract = order.job, order.job.checkpoint
    return SubmittedIPUJob(
        namespace=settings.namespace_of(job.project),
        name=name_of(order.run, order.attempt),
        tasks=job.tasks,
        grace_s=contract.grace_s,
        time_limit_s=job.time_limit_s,
        warn_s=contract.warn_s,
        warn_signal=signal_names(warn_signals(contract.warn_signal, to_yield=False)),
        keep_s=job.terminal_keep_s,
        unseen=_unseen_reason(job, settings) if job.checkpoint_directory is not None else "",
    )


def build_job(
    order: RunSubmission, asked: SubmittedIPUJob, settings: KubernetesEngineSettings, installation: str
) -> KubeObject:
    """The IPUJob of an order, without an instance yet.

    Raises:
        MooringsError: ``engine.rejected``: it could never run.
    """
    job = order.job
    labels = {RUN: order.run, ATTEMPT: str(order.attempt), INSTALLATION: installation}
    notes = {EPOCH: str(order.epoch), SUBMITTED_JOB: json.dumps(to_plain(asked), separators=(",", ":"))}
    if job.preemptible:
        notes[names.PREEMPTIBLE] = "true"
    if job.checkpoint.resumable:
        notes[names.RESUMABLE] = "true"
    body: KubeObject = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": asked.name, "namespace": asked.namespace, "labels": labels, "annotations": notes},
        "spec": {
            "jobInstances": 0,
            "ipusPerJobInstance": str(job.accelerators.size),
            "workerPerJobInstance": str(job.tasks),
            "modelReplicasPerWorker": str(claim_spec_for(job).replicas_per_gcd),
            "priority": job.priority,
            "restartPolicy": {"type": RestartType.NEVER.value},
            "cleanPodPolicy": CleanPodPolicy.NONE.value,
            "workers": {"template": {"metadata": {"labels": labels}, "spec": _pod_spec(order, asked, settings)}},
        },
    }
    if job.retries:
        body["spec"]["nodeLostSeconds"] = NODE_LOST_S
    if job.time_limit_s is not None and not job.preemptible:  # the time of all starts counts, and we give each its own
        body["spec"]["activeDeadlineSeconds"] = min(math.ceil(job.time_limit_s) + START_S, DEADLINE_S_MAX)
    if faults := find_errors(body):
        told = "; ".join(f"{fault.path}: {fault.problem}" for fault in faults[:3])
        raise rejected_error(f"no IPUJob can be made of it: {told}", next((one.hint for one in faults if one.hint), ""))
    return body


def _pod_spec(order: RunSubmission, asked: SubmittedIPUJob, settings: KubernetesEngineSettings) -> KubeObject:
    job = order.job
    requests: KubeObject = {"cpu": str(job.resources.cpus)} if settings.request_cpus else {}
    limits: KubeObject = {}
    if job.resources.memory_bytes is not None:
        requests["memory"] = limits["memory"] = str(job.resources.memory_bytes)
    found: KubeObject = {
        # The tasks are not process 1: that ignores signals without a handler, and its orphans are never reaped.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": max(math.ceil(asked.grace_s), 1),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": CONTAINER,
                "image": job.image,
                "command": [unexpanded(word) for word in _started_command(order)],
                "workingDir": job.workdir,
                "envFrom": [{"secretRef": {"name": secret_name(asked.name)}}],
                "resources": {"requests": requests, "limits": limits},
                "volumeMounts": [
                    {"name": f"volume-{number}", "mountPath": volume.path, "readOnly": volume.read_only}
                    for number, volume in enumerate(settings.volumes)
                ],
            }
        ],
        "volumes": [
            {"name": f"volume-{number}"}
            | (
                {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
                if volume.claim
                else {"hostPath": {"path": volume.host_path}}
            )
            for number, volume in enumerate(settings.volumes)
        ],
    }
    if job.terminal_keep_s is not None:
        found["containers"][0] |= {"stdin": True, "tty": True}
    if settings.sees_checkpoints_of(job):
        add_checkpoint_containers(found, order, settings.checkpoint_image)
    who = {"runAsUser": settings.user, "runAsGroup": settings.group}
    if any(number is not None for number in who.values()):
        found["securityContext"] = {key: number for key, number in who.items() if number is not None}
    return found


def _started_command(order: RunSubmission) -> list[str]:
    command = order.job.started_command(order.resume_from)
    if order.job.terminal_keep_s is None:
        return [*command]
    return ["/bin/sh", "-c", _AT_TERMINAL, "moorings", *command]


def build_secret(order: RunSubmission, asked: SubmittedIPUJob, uid: str) -> KubeObject:
    """The Secret with a job's variables and those that every engine adds.

    Args:
        order: its order.
        asked: the stored part of the order.
        uid: of the IPUJob, its owner.
    """
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": asked.name, "uid": uid}
    return {
        "metadata": {
            "name": secret_name(asked.name),
            "namespace": asked.namespace,
            "labels": {names.JOB: asked.name},
            "ownerReferences": [owner],
        },
        "data": {name: base64.b64encode(value.encode()).decode() for name, value in job_environment(order).items()},
    }


def parse_submitted_job(found: KubeObject) -> SubmittedIPUJob | None:
    """The order, as its IPUJob stores it."""
    text = (found["metadata"].get("annotations") or {}).get(SUBMITTED_JOB)
    return from_plain(SubmittedIPUJob, json.loads(text)) if text is not None else None


def attempt_key_of(found: KubeObject) -> AttemptKey | None:
    """The attempt that an IPUJob or a Pod of ours belongs to."""
    labels = found["metadata"].get("labels") or {}
    run, attempt = labels.get(RUN), labels.get(ATTEMPT, "")
    return (RunId(run), int(attempt)) if run and attempt.isdecimal() else None


def is_attempts_job(found: KubeObject, run: RunId, attempt: int, installation: str) -> bool:
    """Whether an IPUJob belongs to that attempt of that run, created by this installation."""
    labels = found["metadata"].get("labels") or {}
    return (labels.get(RUN), labels.get(ATTEMPT), labels.get(INSTALLATION)) == (run, str(attempt), installation)


def is_active(found: KubeObject) -> bool:
    """Whether an IPUJob was activated."""
    return bool((found.get("spec") or {}).get("jobInstances", 1))


def epoch_of(found: KubeObject) -> Epoch:
    """The epoch of the controller that created an IPUJob, or that led at its last fencing."""
    text = (found["metadata"].get("annotations") or {}).get(EPOCH, "")
    return Epoch(int(text) if text.isdecimal() else 0)
