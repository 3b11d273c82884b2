"""The one table of ``moor doctor``'s checks, with their subjects. A check of one pool has the pool's name after its id.

Ids are permanent, like error codes: scripts use them with ``--only`` and dashboards count them.
"""

from __future__ import annotations

DOCTOR_PAGE = "docs/how-to/find-out-what-is-wrong.md"

FOREIGN_REASON = "made outside Moorings"  # in the reason of a device; without it the partition may be ours, and a job's

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
    # checked by the controller
    "inside": "the controller lets you look into it (for admins) and answers in time",
    "laws": "what the controller holds in memory keeps the laws",
    "database": "the database can be written",
    "memory": "memory and database hold the same records",
    "events": "memory and database agree how far the event log has come",
    "replication": "a standby that is promoted has every commit that was answered",
    "keys": "no access key expires within 14 days",
    "history": "old events and records leave the database when their time comes",
    "queue": "every waiting claim can be served one day",
    "guarantees": "what projects are guaranteed fits into each pool, as far as it is in service",
    "reclaims": "who was asked to yield has done so in time",
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


def check_family(check: str) -> str:
    """The id without the name of a pool after it."""
    return check if check in CHECKS else check.partition(".")[0]


def docs_link(check: str) -> str:
    """The manual's page for a check: file and anchor."""
    return f"{DOCTOR_PAGE}#{check_family(check).replace('.', '')}"
