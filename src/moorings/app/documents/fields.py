"""The meaning of a request's fields, and their bounds: those of the shapes and those of ``core``.

The shapes only limit sizes (``api.bodies``); ``core`` decides what makes sense, so the OpenAPI page does not know that.
The numbers come from the constants that decide.
"""

from __future__ import annotations

from moorings.core.model.access import GRACE_S, GRACE_S_MAX, LIFETIME_DAYS_MAX, LIFETIME_S_MIN, SUBJECT_CHARS_MAX, Role
from moorings.core.model.claims import (
    LEASE_S_MAX,
    LEASE_S_MIN,
    NAME_CHARS_MAX,
    OWNER_CHARS_MAX,
    PRIORITY_MAX,
    SIZE_MAX,
    TIME_LIMIT_S_MAX,
    WARN_SIGNALS,
)
from moorings.core.model.projects import (
    ALIASES_MAX,
    LIMIT_BYTES_MAX,
    LIMIT_MAX,
    MEMBER_CHARS_MAX,
    MEMBERS_MAX,
    USER_LIMITS_MAX,
    WEIGHT_MAX,
)
from moorings.core.model.queue_reports import INSTANCE_ID_CHARS, QUEUE_JOBS_MAX
from moorings.core.model.timestamps import DAY_S
from moorings.core.model.topology import DEVICES_MAX
from moorings.workloads.arrays import ELEMENTS_MAX
from moorings.workloads.commands import COMMAND_ARGS_MAX, COMMAND_CHARS_MAX
from moorings.workloads.dependencies import AFTER_MAX
from moorings.workloads.environment import ENVIRONMENT_CHARS_MAX, SETUP_CHARS_MAX, SETUP_LINES_MAX
from moorings.workloads.jobs import (
    JOB_NAME_CHARS_MAX,
    RETRIES_MAX,
    TASKS_MAX,
)

_SIZE = f"1 to {SIZE_MAX:,}"
_NAME = f"1 to {NAME_CHARS_MAX} lower-case letters, digits, `-`, `.`, `_`"
_GCDS = "1 or more; must divide `size` into powers of two in a pool of that topology"
_LIMIT = f"1 to {TIME_LIMIT_S_MAX:,} s"
_PRIORITY = f"-{PRIORITY_MAX:,} to {PRIORITY_MAX:,}"
_PROJECT = "1 to 64 letters, digits, `.`, `_`, `-`, `/`"
_ANY_POOL = "a pool's name"
_POOL = "Only in this pool; else any of its kind."
_KIND = "a pool's kind"
_LABELS = "at most 32 of up to 63 letters, digits, `.`, `_`, `/`, `-`"
_CONTRACT = "[CheckpointShape](#checkpointshape)"

# By shape and field: its bounds and its meaning.
FIELDS: dict[tuple[str, str], tuple[str, str]] = {
    ("ClaimRequest", "size"): (f"{_SIZE}; 0 with `resources` alone", "Devices."),
    ("ClaimRequest", "accelerator"): (_KIND, "Kind of accelerator."),
    ("ClaimRequest", "name"): (_NAME, "Name of the claim and its partition; one is made if it is left out."),
    ("ClaimRequest", "gcds"): (_GCDS, "Graph compilation domains."),
    ("ClaimRequest", "replicasPerGcd"): ("1 or more", "Model replicas inside each GCD."),
    ("ClaimRequest", "pool"): (_ANY_POOL, _POOL),
    ("ClaimRequest", "owner"): (
        f"at most {OWNER_CHARS_MAX} characters, as `user/ann`",
        "Whose it is; the caller's own if it is left out.",
    ),
    ("ClaimRequest", "resources"): ("at most 64 names with whole numbers", "Secondary resources, in base units."),
    ("ClaimRequest", "project"): (_PROJECT, "Who pays."),
    ("ClaimRequest", "priority"): (_PRIORITY, "Higher is first in the queue."),
    ("ClaimRequest", "timeLimitS"): (_LIMIT, "How long it wants to hold its partition; told to those who wait."),
    ("ClaimRequest", "preemptible"): (
        "true or false",
        "Whether the claim may be preempted by a project that is guaranteed its devices.",
    ),
    ("ClaimRequest", "checkpoint"): (_CONTRACT, "What its job promises about stopping."),
    ("ClaimRequest", "leaseS"): (
        f"{LEASE_S_MIN} to {LEASE_S_MAX:,} s",
        "It is released unless it is renewed within this time; no lease if it is left out.",
    ),
    ("ClaimRequest", "queue"): ("`wait`, `never`", "Whether it waits for room, or is refused (`claim.no_room`)."),
    ("ClaimRequest", "waitingSince"): (
        "a time (RFC 3339)",
        "Of an agent's key alone: its place in the queue is that of a claim made then.",
    ),
    ("ClaimRequest", "person"): (
        f"at most {SUBJECT_CHARS_MAX} characters, as of a subject",
        "Of an agent's key alone: for whom it claims, as the user of a Slurm job. Only shown.",
    ),
    ("PartitionRequest", "name"): (_NAME, "Name of the partition and of its claim."),
    ("PartitionRequest", "size"): (_SIZE, "Devices."),
    ("PartitionRequest", "accelerator"): (_KIND, "Kind of accelerator."),
    ("PartitionRequest", "gcds"): (_GCDS, "Graph compilation domains."),
    ("PartitionRequest", "replicasPerGcd"): ("1 or more", "Model replicas inside each GCD."),
    ("PartitionRequest", "pool"): (_ANY_POOL, _POOL),
    ("RunRequest", "job"): ("[JobShape](#jobshape)", "The job, whole."),
    ("RunRequest", "engine"): ("`local`", "What runs its processes."),
    ("RunRequest", "resume"): ("an id or a name", "An earlier run: this one begins from its newest whole checkpoint."),
    ("RunRequest", "resumeFrom"): ("a path, or its last part", "Which of its checkpoints instead."),
    ("RunRequest", "spoolEntry"): ("an id", "The job as `moor run` handed it in, on a machine that people share."),
    ("RunRequest", "spoolEntries"): ("ids", "Of an array: each element's job as it was handed in, by index."),
    ("RunRequest", "submitter"): (
        "[SubmitterShape](#submittershape)",
        "The person who submits the run to Slurm once it is made, where the controller does not.",
    ),
    ("SubmitterShape", "uid"): (
        "over 0",
        "Their uid on the cluster; a job of another user is never this run's.",
    ),
    ("SubmitterShape", "tokenDigest"): ("64 hexadecimal digits", "SHA-256 of the secret in the token of its reports."),
    ("SubmitterShape", "tokenDigests"): ("such digests", "Of an array: the one of each element, by index."),
    ("RunReportRequest", "attempt"): ("0 or more", "Which attempt of the run."),
    ("RunReportRequest", "files"): ("[ReportedFileShape](#reportedfileshape)", "Files that are new or have changed."),
    ("RunReportRequest", "present"): ("names", "All such files; the others are there no more."),
    ("RunReportRequest", "output"): ("[ReportedOutputShape](#reportedoutputshape)", "What is new of the output."),
    ("RunReportRequest", "job"): (
        "[SlurmJobShape](#slurmjobshape)",
        "Its job, as its person's Slurm shows it.",
    ),
    ("RunReportRequest", "abandoned"): ("`false`", "It was not submitted, and never will be."),
    ("ReportedFileShape", "name"): ("a name below the attempt's folder", "Which file; only known ones are taken."),
    ("ReportedFileShape", "text"): ("up to 262,144 characters", "Its content."),
    ("ReportedFileShape", "modifiedAt"): ("a time", "When it was written."),
    ("ReportedOutputShape", "task"): ("a rank", "Of which task."),
    ("ReportedOutputShape", "offset"): ("bytes", "Where the part begins; one that leaves a gap is not taken."),
    ("ReportedOutputShape", "data"): ("Base64", "The part."),
    ("SubmittedJobsRequest", "instance"): ("hexadecimal digits", "Which Slurm of that name."),
    ("SubmittedJobsRequest", "uids"): ("uids", "The users of whom the listing is complete."),
    ("SubmittedJobsRequest", "jobs"): (
        "[SlurmJobShape](#slurmjobshape)",
        "Their jobs with the comment of a run.",
    ),
    ("SubmittedJobsRequest", "accounted"): (
        "[SlurmJobShape](#slurmjobshape)",
        "Ended jobs in the accounting.",
    ),
    ("SlurmJobShape", "run"): ("an id", "The run in the job's comment."),
    ("SlurmJobShape", "attempt"): ("0 or more", "The attempt in it."),
    ("SlurmJobShape", "job"): ("over 0", "Slurm's id of the job."),
    ("SlurmJobShape", "uid"): ("a uid", "Its user."),
    ("SlurmJobShape", "state"): ("Slurm's word", "Its state."),
    ("SlurmJobShape", "reason"): ("Slurm's word", "Why it waits."),
    ("SlurmJobShape", "restarts"): ("0 or more", "How often it was requeued."),
    ("SlurmJobShape", "exitCode"): ("0 to 255", "Of its script."),
    ("SlurmJobShape", "exitSignal"): ("0 to 127", "The signal that ended its script."),
    ("SlurmJobShape", "started"): ("`false`", "It had nodes."),
    ("SlurmJobShape", "endedAt"): ("a time", "When it ended; left out while it has not."),
    ("RunRequest", "claim"): ("a claim of yours, of its shape", "It runs on that claim's partition, which stays."),
    ("PauseRequest", "saveTimeoutS"): ("seconds", "How long it may take to save; else the `warnS` of its job."),
    ("ResumeRequest", "resumeFrom"): ("a path, or its last part", "The checkpoint; else the newest whole one."),
    ("LabelsRequest", "labels"): (_LABELS, "Labels to set."),
    ("LabelsRequest", "remove"): ("keys", "Labels that go."),
    ("PriorityRequest", "priority"): (_PRIORITY, "Higher is first; of an appliance's jobs -100 to -399 (P1 to P3)."),
    ("JobShape", "name"): (f"1 to {JOB_NAME_CHARS_MAX} letters, digits, `-`, `.`, `_`", "Name of the job."),
    ("JobShape", "command"): (
        f"1 to {COMMAND_ARGS_MAX:,} texts, {COMMAND_CHARS_MAX:,} characters in all",
        "Program and arguments; no shell is put in between.",
    ),
    ("JobShape", "workdir"): ("an absolute path", "Working folder of every task."),
    ("JobShape", "environment"): (
        f"{ENVIRONMENT_CHARS_MAX:,} characters in all",
        "Variables of every task; none that [Moorings sets](environment.md#variables-of-a-job). No answer has values.",
    ),
    ("JobShape", "tasks"): (f"1 to {TASKS_MAX:,}", "Processes; one GCD each."),
    ("JobShape", "accelerators"): ("[AcceleratorsShape](#acceleratorsshape)", "Devices of the whole job."),
    ("JobShape", "resources"): ("[ResourcesShape](#resourcesshape)", "What a task needs of its host."),
    ("JobShape", "project"): (_PROJECT, "Who pays."),
    ("JobShape", "priority"): (_PRIORITY, "Higher is first in the queue."),
    ("JobShape", "timeLimitS"): (_LIMIT, "Time limit of the run; endless if it is left out."),
    ("JobShape", "checkpoint"): (_CONTRACT, "What it promises about stopping."),
    ("JobShape", "checkpointDirectory"): ("an absolute path", "Told to the tasks as `MOORINGS_CHECKPOINT_DIR`."),
    ("JobShape", "image"): ("text", "The container image in which the tasks run."),
    ("JobShape", "labels"): (_LABELS, "What it is found by."),
    ("JobShape", "leaseS"): (
        f"{LEASE_S_MIN} to {LEASE_S_MAX:,} s",
        "It is cancelled unless its claim is renewed within this time; no lease if it is left out.",
    ),
    ("JobShape", "resumeArgs"): (
        "a list of texts, one with `{}`",
        "Appended to the command of an attempt that resumes; `{}` is the checkpoint's path.",
    ),
    ("JobShape", "retries"): (
        f"0 to {RETRIES_MAX}",
        "How often it resumes after the loss of its machine or devices; 0 if left out.",
    ),
    ("JobShape", "setup"): (
        f"{SETUP_LINES_MAX} lines, {SETUP_CHARS_MAX:,} characters in all",
        "Lines that bash runs before the command, which has their variables and folder.",
    ),
    ("JobShape", "terminalKeepS"): (
        "0 s to 366 days",
        "Task 0 gets a terminal; the run ends once that was unattended for so long. No terminal if left out.",
    ),
    ("JobShape", "after"): (
        f"a list of up to {AFTER_MAX} texts: `RUN[:ok|any|failed]`",
        "Runs, by id or name, that must have ended so before it asks for devices.",
    ),
    ("JobShape", "array"): (
        f"`0-99%8`, `1,3,7-9` or `0-10:2`, up to {ELEMENTS_MAX:,} indexes",
        "One run for each index; with `%8`, 8 at most ask for devices at once.",
    ),
    ("JobShape", "preemptible"): ("true or false", "Whether it may be asked to yield; it goes on later."),
    ("JobShape", "appliance"): ("[ApplianceShape](#applianceshape)", "Its part in a workflow of an appliance."),
    ("ApplianceShape", "kind"): ("`compile`, `execute`", "What it is for."),
    ("ApplianceShape", "workflow"): ("`wflow-` and 22 letters or digits", "What ties one person's jobs together."),
    ("AcceleratorsShape", "kind"): (_KIND, "Kind of accelerator."),
    ("AcceleratorsShape", "size"): (f"0 to {SIZE_MAX:,}", "Devices of the whole job; 0: only CPUs and memory."),
    ("AcceleratorsShape", "replicas"): (
        "a multiple of `tasks`",
        "Model replicas of the whole job; one a task if left out.",
    ),
    ("AcceleratorsShape", "pool"): (_ANY_POOL, _POOL),
    ("AcceleratorsShape", "resources"): (
        "names and whole numbers",
        "What else the pool has, in base units.",
    ),
    ("ResourcesShape", "cpus"): ("1 or more", "Processors of a task; counted on one machine."),
    ("ResourcesShape", "memoryBytes"): ("1 or more", "Memory of a task; counted on one machine."),
    ("ResourcesShape", "nodes"): ("1 on one machine", "Hosts of the job."),
    ("CheckpointShape", "resumable"): ("true or false", "Whether the job goes on from its checkpoint."),
    ("CheckpointShape", "warnSignal"): (
        ", ".join(f"`{name}`" for name in WARN_SIGNALS),
        "Signal before the limit. Default: `auto`.",
    ),
    ("CheckpointShape", "warnS"): (f"0 to {TIME_LIMIT_S_MAX:,} s", "How long before the limit it is sent."),
    ("CheckpointShape", "graceS"): (f"0 to {TIME_LIMIT_S_MAX:,} s", "Time between TERM and KILL."),
    ("QueueRequest", "queue"): ("`slurm/CLUSTER`", "Whose queue; owners of its claims begin with it."),
    ("QueueRequest", "accelerator"): (_KIND, "Kind of accelerator that its jobs take."),
    ("QueueRequest", "jobs"): (f"at most {QUEUE_JOBS_MAX}", "The first that wait, in that queue's own order."),
    ("QueueRequest", "forS"): ("5 to 600 s", "How long the report stays valid."),
    ("QueueRequest", "instance"): (
        f"{INSTANCE_ID_CHARS} hex digits",
        "Which of the schedulers of that name tells it; if it is left out, any other takes its place.",
    ),
    ("QueuedJobShape", "owner"): ("`QUEUE/...`, each once", "Of the claim that will be made when it starts."),
    ("QueuedJobShape", "size"): (_SIZE, "Devices."),
    ("QueuedJobShape", "gcds"): (_GCDS, "Graph compilation domains."),
    ("QueuedJobShape", "replicasPerGcd"): ("1 or more", "Model replicas inside each GCD."),
    ("QueuedJobShape", "pool"): (_ANY_POOL, _POOL),
    ("QueuedJobShape", "since"): ("a time, not in the future", "When it began to wait; now if it is left out."),
    ("QueuedJobShape", "timeLimitS"): (_LIMIT, "How long it will hold its partition."),
    ("YieldRequest", "why"): ("at most 200 characters", "Why, for the log."),
    ("CheckpointRequest", "at"): ("a time", "When its state was saved; now if it is left out, or in the future."),
    ("EstimateRequest", "size"): (_SIZE, "Devices."),
    ("EstimateRequest", "kind"): (_KIND, "Kind of accelerator."),
    ("EstimateRequest", "pool"): (_ANY_POOL, _POOL),
    ("EstimateRequest", "gcds"): (_GCDS, "Graph compilation domains."),
    ("EstimateRequest", "project"): (_PROJECT, "Who would pay."),
    ("EstimateRequest", "priority"): (_PRIORITY, "Higher is first in the queue."),
    ("EstimateRequest", "timeLimitS"): (_LIMIT, "How long it would hold its partition; endless if it is left out."),
    ("EstimateRequest", "preemptible"): ("true or false", "Whether it could be asked to yield."),
    ("WhatIfRequest", "policy"): ("a [policy file](../how-to/queue-and-priorities.md#choose-a-policy)", "Its text."),
    ("DefragmentRequest", "size"): (_SIZE, "Devices of the block that shall be free; this, or `claim`."),
    ("DefragmentRequest", "claim"): ("id or name", "A claim that waits: as much as it asks for."),
    ("DefragmentRequest", "pool"): (_ANY_POOL, _POOL),
    ("DefragmentRequest", "dryRun"): ("true or false", "Only report; ask no claim to move."),
    ("DefragmentRequest", "costMaxS"): ("0 or more", "Only if no more device-seconds are lost."),
    ("ProjectRequest", "shares"): (
        "[ShareShape](#shareshape), one a pool",
        "What it is guaranteed, with what the projects below it are.",
    ),
    ("ProjectRequest", "weight"): (
        f"more than 0, at most {WEIGHT_MAX:,.0f}",
        "Share of borrowed devices; twice the weight allows twice the use.",
    ),
    ("ProjectRequest", "devicesMax"): (
        f"0 to {LIMIT_MAX:,}",
        "So many devices it and those below it hold at once, at most; no limit if it is left out.",
    ),
    ("ProjectRequest", "userDevicesMax"): (f"0 to {LIMIT_MAX:,}", "So many of them one subject holds, at most."),
    ("ProjectRequest", "userLimits"): (
        f"at most {USER_LIMITS_MAX:,} subjects of at most {MEMBER_CHARS_MAX} characters, with 0 to {LIMIT_MAX:,} each",
        "For these subjects in place of `userDevicesMax`; 0: nothing.",
    ),
    ("ProjectRequest", "priorityMax"): (
        f"0 to {PRIORITY_MAX:,}",
        "The highest that may be asked for in its name, but by admins; left out: as above it, else as the policy says.",
    ),
    ("ProjectRequest", "waitingMax"): (
        f"0 to {LIMIT_MAX:,}",
        "When so many claims, or so many runs, wait in it and those below it, users may add none; left out: no limit.",
    ),
    ("ProjectRequest", "waitingBytesMax"): (
        f"0 to {LIMIT_BYTES_MAX:,}",
        "So many bytes the jobs of these runs have, together, at most; left out: no limit.",
    ),
    ("ProjectRequest", "members"): (
        f"at most {MEMBERS_MAX:,} of at most {MEMBER_CHARS_MAX} characters",
        "The subjects that may ask in its name, beside those of projects above it; without any or admins, everybody.",
    ),
    ("ProjectRequest", "admins"): (
        f"at most {MEMBERS_MAX:,} of at most {MEMBER_CHARS_MAX} characters",
        "The subjects that may also cancel, pause, resume, release and reorder what is in it and those below it.",
    ),
    ("ProjectRequest", "open"): (
        "true or false",
        "Whether every key sees what is in it and those below it; else its people, and admins, do.",
    ),
    ("ProjectRequest", "aliases"): (
        f"at most {ALIASES_MAX} `slurm/CLUSTER/ACCOUNT` or `kubernetes/CLUSTER/NAMESPACE`",
        "What other schedulers call it.",
    ),
    ("ProjectRequest", "version"): ("1 or more", "The version that is changed; a new project if it is left out."),
    ("ShareShape", "pool"): (_ANY_POOL, "In which pool."),
    ("ShareShape", "blocks"): (
        f"sizes as text, with 1 to {DEVICES_MAX:,} each",
        "How many blocks of each size; where any subset of devices is a block: so many of size 1.",
    ),
    ("QueuedJobShape", "project"): (_PROJECT, "Who pays: the account there, or a project here."),
    ("QueuedJobShape", "preemptible"): ("true or false", "Whether that claim may be asked to yield."),
    ("DrainRequest", "reason"): ("1 to 500 characters", "Reason, shown to other admins."),
    ("KeyRequest", "subject"): ("a name without `/`", "Who the key speaks for."),
    ("KeyRequest", "role"): (", ".join(f"`{role}`" for role in Role), "What its holder may do."),
    ("KeyRequest", "ownerPrefix"): (
        f"at most {OWNER_CHARS_MAX} characters, as `slurm/cluster1`",
        "Of an agent, which must have one: the owners it acts for.",
    ),
    ("KeyRequest", "lifetimeS"): (
        f"{LIFETIME_S_MIN:g} to {LIFETIME_DAYS_MAX * DAY_S:,.0f}, or 0: for ever",
        "When it expires; if it is left out: as the controller is set, and an agent's never.",
    ),
    ("RotateRequest", "graceS"): (
        f"0 to {GRACE_S_MAX:,.0f}",
        f"How long the old secret still works, {GRACE_S:,.0f} if it is left out; never for longer than it would have.",
    ),
    ("RotateRequest", "lifetimeS"): (
        "as in KeyRequest; only of admins",
        "Another lifetime; if it is left out: as long again as it was to live before.",
    ),
    ("TopologyShape", "type"): ("`power-of-two`, `any-subset`, `catalogue`", "Which blocks there are."),
    ("TopologyShape", "domains"): ("1 or more", "How many domains."),
    ("TopologyShape", "domainSize"): ("1 or more", "Devices of each."),
    ("TopologyShape", "maxBlock"): ("1 or more", "Devices of the largest partition."),
    ("TopologyShape", "blocks"): ("lists of devices", "Of a catalogue: every block there is."),
}
