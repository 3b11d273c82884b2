"""The one table of error codes: the meaning of each, its HTTP status and the exit code of ``moor``.

Codes are ``noun.problem`` and permanent. A test reads the sources and fails on a code that is missing here, or that is
here and never raised.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``moor`` (a run's own code is returned unchanged)."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    DENIED = 4
    CONFLICT = 5
    NO_ROOM = 6
    UNREACHABLE = 7
    FINDINGS = 8
    TIMEOUT = 124


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """The meaning of a code: HTTP status, exit code, and a title."""

    status: int
    exit: ExitCode
    title: str


ERRORS: dict[str, ErrorKind] = {
    "answer.invalid": ErrorKind(500, ExitCode.FAILED, "an appliance's job has no readable result"),
    "artifact.damaged": ErrorKind(422, ExitCode.FAILED, "a compiled program is not as it was made"),
    "archive.failed": ErrorKind(500, ExitCode.FAILED, "old records cannot be archived, and stay in the database"),
    "auth.certificate_mismatch": ErrorKind(
        403, ExitCode.DENIED, "the client certificate is not that of the key's subject"
    ),
    "auth.certificate_refused": ErrorKind(
        401, ExitCode.DENIED, "the controller does not accept the client's certificate"
    ),
    "auth.missing": ErrorKind(401, ExitCode.DENIED, "no access key was sent"),
    "auth.invalid": ErrorKind(401, ExitCode.DENIED, "the access key is not valid"),
    "auth.expired": ErrorKind(401, ExitCode.DENIED, "the access key has expired"),
    "auth.denied": ErrorKind(403, ExitCode.DENIED, "the access key may not do this"),
    "backup.invalid": ErrorKind(422, ExitCode.USAGE, "the backup cannot be used or written"),
    "backup.unfinished": ErrorKind(409, ExitCode.CONFLICT, "a restore has begun and not ended"),
    "block.invalid": ErrorKind(422, ExitCode.USAGE, "a list of devices cannot be read"),
    "body.invalid": ErrorKind(422, ExitCode.USAGE, "the request's body has a wrong or unknown field"),
    "body.not_json": ErrorKind(400, ExitCode.USAGE, "the request's body is not JSON"),
    "body.not_utf8": ErrorKind(400, ExitCode.USAGE, "the request's body is not UTF-8"),
    "body.too_large": ErrorKind(413, ExitCode.USAGE, "the request's body is too large"),
    "checkpoint.failed": ErrorKind(500, ExitCode.FAILED, "a checkpoint cannot be written"),
    "checkpoint.invalid": ErrorKind(422, ExitCode.FAILED, "cannot resume from this checkpoint"),
    "claim.archived": ErrorKind(410, ExitCode.CONFLICT, "the key's claim has ended and is archived"),
    "claim.ended": ErrorKind(409, ExitCode.CONFLICT, "the claim has ended"),
    "claim.gcds_invalid": ErrorKind(422, ExitCode.USAGE, "the GCDs do not divide the devices"),
    "claim.gcds_too_few": ErrorKind(422, ExitCode.USAGE, "a partition over several domains needs a GCD in each"),
    "claim.held": ErrorKind(409, ExitCode.CONFLICT, "the claim holds a partition and no longer waits"),
    "claim.held_by_run": ErrorKind(409, ExitCode.CONFLICT, "the claim belongs to a run that has not ended"),
    "claim.invalid": ErrorKind(422, ExitCode.USAGE, "the claim has a value that is not allowed"),
    "claim.name_taken": ErrorKind(409, ExitCode.CONFLICT, "an unended claim has that name"),
    "claim.no_lease": ErrorKind(409, ExitCode.CONFLICT, "the claim has no lease to renew"),
    "claim.no_room": ErrorKind(409, ExitCode.NO_ROOM, "there is no room now"),
    "claim.not_asked": ErrorKind(409, ExitCode.CONFLICT, "the claim was not asked to yield"),
    "claim.not_ready": ErrorKind(409, ExitCode.CONFLICT, "the claim has no usable partition"),
    "claim.other_shape": ErrorKind(409, ExitCode.CONFLICT, "the claim is of another shape than the run"),
    "claim.replicas_invalid": ErrorKind(422, ExitCode.USAGE, "the replicas do not divide"),
    "claim.size_invalid": ErrorKind(422, ExitCode.USAGE, "the size is out of range"),
    "claim.size_not_allowed": ErrorKind(422, ExitCode.USAGE, "no pool has partitions of that size"),
    "claim.too_large": ErrorKind(422, ExitCode.USAGE, "the size is more than the largest partition"),
    "claim.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such claim"),
    "config.invalid": ErrorKind(500, ExitCode.USAGE, "a configuration file cannot be used"),
    "container.no_image": ErrorKind(422, ExitCode.USAGE, "the container image could not be fetched"),
    "container.no_runtime": ErrorKind(422, ExitCode.USAGE, "nothing here can run the job's container image"),
    "controller.busy": ErrorKind(503, ExitCode.UNREACHABLE, "the controller has too much to do"),
    "controller.foreign": ErrorKind(401, ExitCode.DENIED, "another user's program is at the controller's address"),
    "controller.no_leader": ErrorKind(503, ExitCode.UNREACHABLE, "no controller leads at this moment"),
    "controller.running": ErrorKind(409, ExitCode.CONFLICT, "another controller uses this data folder"),
    "controller.unreachable": ErrorKind(503, ExitCode.UNREACHABLE, "the controller cannot be reached"),
    "credentials.unsafe": ErrorKind(401, ExitCode.DENIED, "others can read the credentials file"),
    "device.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such device"),
    "driver.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "the hardware's controller does not answer"),
    "driver.unknown": ErrorKind(422, ExitCode.USAGE, "there is no such driver"),
    "duration.invalid": ErrorKind(422, ExitCode.USAGE, "a duration cannot be read"),
    "engine.rejected": ErrorKind(422, ExitCode.FAILED, "the engine will not run this job"),
    "engine.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "the engine does not answer"),
    "engine.unknown": ErrorKind(422, ExitCode.USAGE, "there is no such engine"),
    "forecast.busy": ErrorKind(503, ExitCode.UNREACHABLE, "too many estimates are in progress"),
    "function.failed": ErrorKind(500, ExitCode.FAILED, "a function raised what cannot be raised here"),
    "function.refused": ErrorKind(422, ExitCode.USAGE, "a function cannot be sent, or its result not be taken"),
    "internal.error": ErrorKind(500, ExitCode.FAILED, "internal error in the controller"),
    "events.gone": ErrorKind(410, ExitCode.CONFLICT, "the next events are archived, no longer in the database"),
    "execution.failed": ErrorKind(500, ExitCode.FAILED, "an appliance's job cannot continue"),
    "ipujob.in_use": ErrorKind(409, ExitCode.CONFLICT, "a Pod still uses the partition"),
    "ipujob.name_taken": ErrorKind(409, ExitCode.CONFLICT, "an object that a job needs has another owner"),
    "ipujob.invalid": ErrorKind(422, ExitCode.USAGE, "the IPUJob cannot be used, or not be changed so"),
    "job.invalid": ErrorKind(422, ExitCode.USAGE, "the job cannot be used"),
    "job.not_startable": ErrorKind(422, ExitCode.USAGE, "the job could not start where it would run"),
    "key.conflict": ErrorKind(409, ExitCode.CONFLICT, "the idempotency key was used with another request"),
    "key.exists": ErrorKind(409, ExitCode.CONFLICT, "an access key with that id exists"),
    "key.invalid": ErrorKind(422, ExitCode.USAGE, "the idempotency key or access key request is not allowed"),
    "key.replaced": ErrorKind(409, ExitCode.CONFLICT, "the access key's secret was replaced by another rotation"),
    "key.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such access key"),
    "kubernetes.denied": ErrorKind(403, ExitCode.DENIED, "the cluster does not let this user do that"),
    "kubernetes.missing": ErrorKind(500, ExitCode.FAILED, "there is no kubectl on this machine"),
    "kubernetes.not_configured": ErrorKind(500, ExitCode.FAILED, "there is no usable kubeconfig"),
    "kubernetes.not_leading": ErrorKind(503, ExitCode.UNREACHABLE, "another replica of the operator may lead"),
    "kubernetes.refused": ErrorKind(422, ExitCode.FAILED, "the Kubernetes API server refused a call"),
    "kubernetes.terms_invalid": ErrorKind(422, ExitCode.USAGE, "the times of the leader election cannot be kept"),
    "kubernetes.unreachable": ErrorKind(503, ExitCode.UNREACHABLE, "the Kubernetes API server does not answer"),
    "kind.unknown": ErrorKind(422, ExitCode.USAGE, "no pool has accelerators of that kind"),
    "label.invalid": ErrorKind(422, ExitCode.USAGE, "a label is not allowed"),
    "log.unreadable": ErrorKind(500, ExitCode.FAILED, "the event log cannot be replayed"),
    "metrics.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "the operator does not report its metrics"),
    "method.not_allowed": ErrorKind(405, ExitCode.USAGE, "the address does not take that method"),
    "model.invalid": ErrorKind(422, ExitCode.USAGE, "a model or its batches cannot be compiled"),
    "munge.invalid": ErrorKind(401, ExitCode.DENIED, "a munge credential is not valid"),
    "munge.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "munge does not answer"),
    "name.invalid": ErrorKind(422, ExitCode.USAGE, "a name has wrong characters or is too long"),
    "node.invalid": ErrorKind(422, ExitCode.FAILED, "a message between a node and the agent cannot be used"),
    "order.invalid": ErrorKind(422, ExitCode.USAGE, "the order of a job of an appliance cannot be used or written"),
    "owner.denied": ErrorKind(403, ExitCode.DENIED, "the access key may not act for that owner"),
    "owner.invalid": ErrorKind(422, ExitCode.USAGE, "an owner cannot be read"),
    "page.invalid": ErrorKind(422, ExitCode.USAGE, "the paging or filter values are not allowed"),
    "params.invalid": ErrorKind(422, ExitCode.USAGE, "arguments or the params file cannot be used"),
    "partition.not_active": ErrorKind(409, ExitCode.CONFLICT, "the partition is not ACTIVE"),
    "partition.too_many": ErrorKind(503, ExitCode.UNREACHABLE, "a namespace has as many partitions as one may have"),
    "partition.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such partition"),
    "partition.unusable": ErrorKind(409, ExitCode.FAILED, "the partition will never be ready"),
    "path.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such address"),
    "pki.exists": ErrorKind(409, ExitCode.CONFLICT, "there is a certificate already"),
    "pki.invalid": ErrorKind(422, ExitCode.USAGE, "the folder of certificates, or one in it, cannot be used"),
    "policy.invalid": ErrorKind(422, ExitCode.USAGE, "the policy file cannot be used"),
    "pool.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such pool"),
    "pools.invalid": ErrorKind(422, ExitCode.USAGE, "the pools file cannot be used"),
    "port.invalid": ErrorKind(422, ExitCode.USAGE, "the port cannot be used"),
    "priority.denied": ErrorKind(403, ExitCode.DENIED, "only an admin may give that priority"),
    "priority.invalid": ErrorKind(422, ExitCode.USAGE, "a priority cannot be read"),
    "program.invalid": ErrorKind(422, ExitCode.USAGE, "the argument of moorings.appliance.run is not a program"),
    "project.changed": ErrorKind(409, ExitCode.CONFLICT, "the project was changed by another request at the same time"),
    "project.exists": ErrorKind(409, ExitCode.CONFLICT, "there is a project of that name"),
    "project.has_children": ErrorKind(409, ExitCode.CONFLICT, "the project has parts, which must be deleted first"),
    "project.in_use": ErrorKind(409, ExitCode.CONFLICT, "claims of the project have not ended"),
    "project.invalid": ErrorKind(422, ExitCode.USAGE, "the project has a value that is not allowed"),
    "project.limit": ErrorKind(422, ExitCode.USAGE, "the claim is larger than what the project may ever hold"),
    "project.not_feasible": ErrorKind(409, ExitCode.CONFLICT, "the guarantees do not fit beside each other"),
    "project.not_member": ErrorKind(403, ExitCode.DENIED, "the subject is not a member of the project"),
    "project.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such project"),
    "queue.invalid": ErrorKind(422, ExitCode.USAGE, "the report of another scheduler's queue is not valid"),
    "queue.taken": ErrorKind(409, ExitCode.CONFLICT, "another scheduler of that name reports that queue"),
    "queue.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "no agent has reported that queue"),
    "quota.waiting": ErrorKind(429, ExitCode.NO_ROOM, "too much of the subject or the project waits already"),
    "quotas.invalid": ErrorKind(422, ExitCode.USAGE, "the quotas file cannot be used"),
    "report.invalid": ErrorKind(422, ExitCode.FAILED, "the report cannot be taken in"),
    "report.outdated": ErrorKind(409, ExitCode.CONFLICT, "the run has a later attempt"),
    "request.not_private": ErrorKind(421, ExitCode.USAGE, "the IPUJobs' proxy accepts this over HTTPS only"),
    "request.invalid": ErrorKind(400, ExitCode.USAGE, "the HTTP request cannot be read"),
    "room.is_free": ErrorKind(409, ExitCode.CONFLICT, "a block of that size is free already"),
    "room.not_found": ErrorKind(409, ExitCode.NO_ROOM, "no move makes a block of that size free"),
    "room.too_costly": ErrorKind(409, ExitCode.CONFLICT, "moving would lose more work than was allowed"),
    "run.archived": ErrorKind(410, ExitCode.CONFLICT, "the key's run has ended and is archived"),
    "run.ended": ErrorKind(409, ExitCode.CONFLICT, "the run has ended"),
    "run.never_starts": ErrorKind(409, ExitCode.CONFLICT, "a run that it waits for has ended in another way"),
    "run.not_pausable": ErrorKind(409, ExitCode.CONFLICT, "the run cannot be paused"),
    "run.not_paused": ErrorKind(409, ExitCode.CONFLICT, "the run is not paused"),
    "run.not_running": ErrorKind(409, ExitCode.CONFLICT, "the run has no processes"),
    "run.queued_elsewhere": ErrorKind(409, ExitCode.CONFLICT, "another scheduler has the run in its queue"),
    "run.unknown": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such run"),
    "run.unsuccessful": ErrorKind(409, ExitCode.FAILED, "the run has ended without success"),
    "size.invalid": ErrorKind(422, ExitCode.USAGE, "a size cannot be read"),
    "slurm.changed": ErrorKind(409, ExitCode.CONFLICT, "the installed files were changed in the meantime"),
    "slurm.denied": ErrorKind(403, ExitCode.DENIED, "Slurm does not let this user do that"),
    "slurm.job_unknown": ErrorKind(404, ExitCode.NOT_FOUND, "Slurm does not know that job"),
    "slurm.missing": ErrorKind(500, ExitCode.FAILED, "something of Slurm is not installed on this machine"),
    "slurm.not_built": ErrorKind(500, ExitCode.FAILED, "the SPANK plugin cannot be compiled"),
    "slurm.refused": ErrorKind(422, ExitCode.FAILED, "Slurm refused a command"),
    "slurm.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "Slurm's controller does not answer"),
    "slurm.unreadable": ErrorKind(500, ExitCode.FAILED, "output or a file of Slurm cannot be read"),
    "spool.refused": ErrorKind(403, ExitCode.DENIED, "the root daemon of this machine does not take the job"),
    "state.illegal_move": ErrorKind(409, ExitCode.CONFLICT, "that is not possible in its present state"),
    "store.conflict": ErrorKind(409, ExitCode.CONFLICT, "it was changed by another request at the same time"),
    "store.corrupt": ErrorKind(500, ExitCode.FAILED, "the database cannot be read"),
    "store.fenced": ErrorKind(503, ExitCode.UNREACHABLE, "another controller leads"),
    "store.missing": ErrorKind(500, ExitCode.FAILED, "there is no database in a folder that was used"),
    "store.nearly_full": ErrorKind(503, ExitCode.UNREACHABLE, "the disk of the database is nearly full"),
    "store.removed": ErrorKind(503, ExitCode.UNREACHABLE, "the database's file was removed or replaced in use"),
    "store.too_new": ErrorKind(500, ExitCode.FAILED, "the database was made by a newer release"),
    "store.turned_back": ErrorKind(503, ExitCode.UNREACHABLE, "the database is one of an earlier moment"),
    "store.unavailable": ErrorKind(503, ExitCode.UNREACHABLE, "the database cannot be written"),
    "terminal.missing": ErrorKind(422, ExitCode.USAGE, "standard input is no terminal"),
    "terminal.refused": ErrorKind(403, ExitCode.DENIED, "the run's supervisor does not do it"),
    "terminal.unreachable": ErrorKind(503, ExitCode.UNREACHABLE, "the run's supervisor cannot be reached"),
    "trace.invalid": ErrorKind(422, ExitCode.USAGE, "a trace of jobs cannot be used"),
    "wait.timeout": ErrorKind(504, ExitCode.TIMEOUT, "the wait was not over in time"),
    "watch.expired": ErrorKind(410, ExitCode.CONFLICT, "a watch cannot continue from there"),
    "webhook.invalid": ErrorKind(
        422, ExitCode.USAGE, "a webhook's certificate or configuration cannot be made like that"
    ),
    "webhook.not_found": ErrorKind(404, ExitCode.NOT_FOUND, "there is no such Secret or webhook configuration"),
    "worker.failed": ErrorKind(409, ExitCode.FAILED, "a worker of the job ended before the job began"),
}


def error_kind(code: str) -> ErrorKind:
    """The meaning of a code; an unknown code of a newer peer is a plain failure."""
    return ERRORS.get(code, ErrorKind(500, ExitCode.FAILED, code))
