"""The table of all checks with their subjects. A check of one pool has the pool's name after its id.

Ids are permanent, like error codes: scripts use them with ``--only`` and dashboards count them. Those of Slurm are
apart: ``moor doctor`` also runs without Slurm.
"""

from __future__ import annotations

from collections.abc import Mapping

DOCTOR_PAGE = "docs/how-to/find-out-what-is-wrong.md"
SLURM_PAGE = "docs/how-to/slurm-install.md"
JOB_PAGE = "docs/how-to/write-a-job-file.md"
SELECT_PAGE = "docs/how-to/slurm-from-select-vipu.md"

CHECKS: dict[str, str] = {
    # checked by the client
    "credentials": "only you can read the file with your access keys",
    "configuration": "the command's configuration can be used",
    "transport": "the access key does not travel in the clear",
    "certificate.client": "your client certificate is good for 30 days more, and only you can read its key",
    "certificate.server": "the controller's certificate is good for 30 days more, and names the configured server",
    "controller": "a controller answers at the configured address",
    "version": "command and controller are of the same release",
    "ready": "the controller can save changes",
    "clock": "this machine's clock and the controller's agree",
    "pools": "there are pools, and each one's hardware can be reached",
    "devices.service": "every device is in service",
    "devices.foreign": "no device is in a partition that was made outside Moorings",
    "devices.logins": "on a machine that people share, a login opens no device file that belongs to jobs",
    # checked by the controller
    "inside": "the controller lets you look into it (for admins) and answers in time",
    "laws": "the records in memory keep the laws",
    "database": "the database can be written",
    "memory": "memory and database hold the same records",
    "events": "memory and database have the same last event",
    "replication": "a standby that is promoted has every commit that was answered",
    "keys": "no access key expires within 14 days",
    "history": "old events and records leave the database when their time comes",
    "quotas": "the quotas file of a machine that people share can be used",
    "queue": "every waiting claim can be served one day",
    "guarantees": "all guarantees fit into the devices in service",
    "reclaims": "every claim that was asked to yield did so in time",
    "drivers": "each pool's driver answers",
    "quarantine": "no device of a pool is quarantined, and never all of them are out of service",
    "partitions.moving": "no partition is being made, reset or removed for too long",
    "partitions.broken": "no partition is in ERROR",
    "partitions.stray": "every partition with our mark is held by a claim",
    "partitions.spared": "no partition is kept only because a job may run on it",
    "partitions.foreign": "no partition was made outside Moorings",
    "runs.moving": "no run starts or stops for too long",
    "seats": "clients may hold more waiting answers and streams",
    # checked on the controller's machine only
    "host": "the controller's machine could be looked at in time",
    "host.settings": "the controller's settings can be used",
    "host.folder": "the data folder is yours alone",
    "host.controller": "the controller that uses the data folder lives, and is the only one",
    "host.pepper": "the secret behind the access keys is there, whole, and yours alone",
    "host.database": "the database file is whole and yours alone",
    "host.revision": "the database's tables are of this release",
    "host.space": "the data folder's disk has room",
    "host.tls": "the controller's certificate is good for 30 days more, names its addresses, and its key is safe",
    "host.pools": "the pools file can be read",
    "host.files": "the controller may open more files",
    "host.runs": "every job that runs here is known to the records",
    "host.restore": "no restore is unfinished, and the database did not go back by itself",
}

JOB_CHECKS: dict[str, str] = {
    "job.starts": "the job starts, and works until it is paused",
    "job.saves": "it saves a whole checkpoint when it is warned",
    "job.resumes": "its second attempt continues from that checkpoint",
}

SLURM_CHECKS: dict[str, str] = {
    "slurm.select": "slurm.conf does not name the V-IPU select plugin, which no stock Slurm has",
    "slurm.controller": "Slurm's commands are here and slurmctld answers",
    "slurm.release": "commands, slurmctld and nodes have one release, which was tested",
    "slurm.conf": "slurm.conf is the same here, at slurmctld and on the nodes",
    "slurm.user": "SlurmUser has the same number here as at slurmctld",
    "slurm.munge": "munge makes and reads credentials",
    "slurm.plugin": "the SPANK plugin is loaded, and compiled for the release that runs",
    "slurm.nodes": "every node of IPU jobs has reported the plugin to the agent",
    "slurm.options": "srun takes --ipus",
    "slurm.submit": "slurmctld calls our submit script",
    "slurm.limits": "the submit script was made for Slurm's JobRequeue",
    "slurm.licenses": "Licenses fits the pool",
    "slurm.accounting": "the accounting counts IPUs",
    "slurm.backfill": "bf_licenses is off",
    "slurm.requeue": "a job that gets no partition is requeued",
    "slurm.waits": "nodes wait longer for a partition than the agent does",
    "slurm.vipu": "vipu.conf can be used, and others cannot read it",
    "slurm.agent": "the agent answers as the nodes ask it",
    "slurm.accounts": "projects that Slurm's accounts stand for cannot be forged",
    "slurm.pool": "the controller answers to the agent's access key",
    "slurm.instance": "no other Slurm of this name uses the agent's access key",
    "slurm.reservation": "Slurm lets start only what the controller can give",
    "slurm.orphans": "every claim for a job of Slurm has its job",
    "slurm.foreign": "no claim is for a job of another Slurm of this name",
    "slurm.unclaimed": "every running job of IPUs has its claim",
}


def check_family(check: str) -> str:
    """The id without the name of a pool after it."""
    return check if check in CHECKS else check.partition(".")[0]


def is_check_prefix(part: str, known: Mapping[str, str]) -> bool:
    """Whether an id may begin with this: a check's own, or a pool's check, followed by the pool's name."""
    check = check_family(part)
    own = any(name.startswith(part) for name in known)
    return own or (check in known and not any(name.startswith(f"{check}.") for name in known))


def docs_link(check: str) -> str:
    """The manual's page for a check: file and anchor."""
    if check == "slurm.select":
        return SELECT_PAGE
    if check in JOB_CHECKS:
        return f"{JOB_PAGE}#try-it-first"
    page, name = (SLURM_PAGE, check) if check in SLURM_CHECKS else (DOCTOR_PAGE, check_family(check))
    return f"{page}#{name.replace('.', '')}"
