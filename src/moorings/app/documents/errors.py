"""``errors.md``: every error code with what to do about it, and every exit code."""

from __future__ import annotations

from moorings.app.documents.markdown import MADE, code, table
from moorings.cli.reference import EXITS
from moorings.wire.errors import ERRORS, Exit

# The hint of an error names the values at hand; what stands here is true of every case of a code.
REMEDIES: dict[str, str] = {
    "auth.missing": "`moor config view --show-origin` tells where the key should come from; ask an admin for one",
    "auth.certificate_mismatch": "use certificate and access key of the same subject; see [TLS](../how-to/tls.md)",
    "auth.certificate_refused": "show one that is good today and of an authority that `tls_client_ca` names",
    "auth.invalid": "it was revoked, or is another installation's; ask an admin for a new one",
    "auth.denied": "ask an admin, or use a key with another role",
    "backup.invalid": "the detail says which part is damaged; take an older backup",
    "backup.unfinished": "run `moor restore` again, or follow the hint",
    "block.invalid": "write indices and ranges, as `0-3,8`",
    "body.invalid": "the detail names the field; the [API page](api.md) has every field and its bounds",
    "body.not_json": "send one JSON object",
    "body.not_utf8": "send UTF-8",
    "body.too_large": "put large things into files that the job reads",
    "claim.gcds_invalid": "ask for GCDs that divide the size, and a power of two of devices each",
    "claim.gcds_too_few": "ask for one GCD a domain at least",
    "claim.held_by_run": "cancel the run; its claim is released with it",
    "claim.invalid": "the detail names the value and what it may be",
    "claim.name_taken": "choose another name, or wait until that claim has ended",
    "claim.no_lease": "only claims that were made with a lease are renewed",
    "claim.no_room": "wait instead (`--wait`, or `queue: wait`), or ask for less",
    "claim.not_ready": "wait until it is READY: `moor wait claim/NAME`",
    "claim.replicas_invalid": "make the replicas a multiple of the tasks",
    "claim.size_invalid": "ask for at least one device",
    "claim.size_not_allowed": "the hint names the nearest sizes; `moor describe pool NAME` names all",
    "claim.too_large": "the hint names the largest; no amount of waiting helps",
    "claim.unknown": "`moor get claims --all` lists those that have ended, too",
    "config.invalid": "the detail names file and line, flag or variable",
    "controller.busy": "try again a little later; close waits and streams you no longer read",
    "controller.no_leader": "wait some seconds: another controller takes over",
    "controller.running": "`moor status` shows it; one data folder has one controller",
    "controller.unreachable": "`moor status` and `moor doctor`; on your own machine `moor up`",
    "credentials.unsafe": "`chmod 600` the file; if others could read it, revoke the key",
    "device.unknown": "`moor get devices` lists them",
    "driver.unavailable": "wait; `moor describe pool NAME` says since when and why",
    "driver.unknown": "correct `driver` in the pools file",
    "duration.invalid": "write `30s`, `10m`, `2:00:00` or `1-12:00:00`",
    "engine.rejected": "the detail says what it will not run",
    "engine.unavailable": "wait; the controller's log says why",
    "engine.unknown": "this release has one engine, `local`",
    "internal.error": "the controller's log has the story under the request id; please report it",
    "job.invalid": "the detail names file, line and key; the [job file](job-file.md) has them all",
    "key.conflict": "one key is for one request: make a new key for another",
    "key.exists": "make the key again; its id is chosen anew",
    "key.invalid": "the detail says what is not allowed",
    "key.unknown": "`moor get keys --all` lists revoked ones, too",
    "kind.unknown": "the hint names the kinds there are",
    "log.unreadable": "the log is damaged or was written by a newer release; restore a backup",
    "method.not_allowed": "the [API page](api.md) has the methods of each address",
    "munge.invalid": "all machines need the same key and clocks within some minutes: `munge -n | ssh NODE unmunge`",
    "munge.unavailable": "start munged; `munge -n | unmunge` tells whether it works",
    "name.invalid": "the hint says which characters a name may have, and how many",
    "node.invalid": "install the same release of Moorings on the nodes and beside the agent",
    "owner.denied": "the hint says whom the key acts for; ask an admin for another prefix",
    "owner.invalid": "write `user/NAME`, or the owner your key's prefix begins",
    "page.invalid": "the hint lists the values the address takes",
    "partition.not_active": "wait until it is ACTIVE: `moor get partition NAME`",
    "partition.unknown": "`moor get partitions` lists them",
    "path.unknown": "the [API page](api.md) has every address",
    "pki.exists": "renew it with `moor pki rotate`, or choose another folder",
    "pki.invalid": "the detail names the file; `moor pki show` tells how all of them are",
    "pool.unknown": "`moor get pools` lists them",
    "pools.invalid": "the detail names file, line and key; the [pools file](pools-file.md) has them all",
    "request.invalid": "the request is not HTTP as it should be; look at what stands between you and the controller",
    "run.not_running": "it has not started, or has ended: `moor describe run NAME`",
    "run.unknown": "`moor get runs --all` lists those that have ended, too",
    "size.invalid": "write a number of bytes, or `4G`, `512M`",
    "queue.invalid": "the detail says what cannot stand there; only agents of other schedulers tell queues",
    "queue.taken": "give one of the two schedulers another name (Slurm: `ClusterName`); if the other one is gone, wait",
    "queue.unknown": "is that scheduler's agent running? It tells its queue within a second (`moor slurm doctor`)",
    "slurm.changed": "look at the file that the detail names, then run the command again",
    "slurm.denied": "run it as root or as SlurmUser",
    "slurm.job_unknown": "it ended more than `MinJobAge` ago, or never was; `sacct` may know it",
    "slurm.missing": "install what the detail names: Slurm's commands, its headers (`libslurm-dev`), or gcc",
    "slurm.not_built": "the detail has the compiler's words; `libslurm-dev` must be of the release that runs",
    "slurm.refused": "the detail has Slurm's own words",
    "slurm.unavailable": "`scontrol ping`; is slurmctld up, and munge? It is asked again",
    "slurm.unreadable": "is it a release of Slurm that Moorings knows? Please report it with the detail",
    "state.illegal_move": "the detail tells the object's story; [states](states.md) has the moves there are",
    "store.conflict": "look again, and decide again",
    "store.corrupt": "stop the controller and restore a backup",
    "store.fenced": "ask again: the controller that leads answers",
    "store.too_new": "install the newer release, or restore a backup made by this one",
    "store.unavailable": "free the disk, or start the database; the controller goes on by itself",
    "wait.timeout": "wait longer, or ask `moor explain`",
}


def errors_page() -> str:
    """The page."""
    text = MADE + "# Errors and exit codes\n\n"
    text += "Errors of the API are `application/problem+json` with these codes; `moor` prints `error:` and `hint:`.\n"
    text += "Codes are for ever. The hint of an error knows the values at hand; what to do in every case stands here.\n"
    text += "\n"
    rows = [(code(name), kind.title, kind.status, kind.exit.value, REMEDIES[name]) for name, kind in ERRORS.items()]
    text += table(("code", "means", "HTTP", "exit", "what to do"), rows)
    text += "\n## Exit codes of `moor`\n\n"
    text += table(("exit", "means"), [*((each.value, EXITS[each]) for each in Exit), ("128+N", "killed by signal N")])
    return text + "\n`moor run` and `moor wait` of a run return the exit code of the job unchanged.\n"
