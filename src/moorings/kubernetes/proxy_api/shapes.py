"""Request and response bodies of the proxy, version 1; JSON as everywhere (``wire.codec``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.wire.shapes import BindingBody

_VERSION = re.compile(r"([0-9a-f]{1,32})-([0-9]{1,15})")

AUDIENCE = "moorings-proxy"  # of the service account tokens that it accepts

# States of a partition, as the operator needs them.
WAITING = "WAITING"  # in a controller's queue, or in several
PREPARING = "PREPARING"  # granted; the hardware is being configured
READY = "READY"  # it has a binding
RECLAIMING = "RECLAIMING"  # READY, and reclaimed: its Pods have until ``until`` to save their state and end
LOST = "LOST"  # it vanished under its job; what is left of it is held until it is released
FAILED = "FAILED"  # it can never be made: message says why
RELEASING = "RELEASING"  # being removed
GIVEN_BACK = "partition.releasing"  # a code: its release is final; with others it may wait again, as after a reclaim


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """``POST /v1/partitions``: the partition of one instance of a job; idempotent.

    ``job_created_at`` (RFC 3339) is the creation time of the job: if the job is younger than the proxy process, no
    earlier process can have made a request for it to a controller that does not respond. ``preemptible``: it may be
    reclaimed; ``resumable``: its job resumes from a checkpoint, so that it may also be moved. ``time_limit_s`` is the
    longest time for which the partition is wanted. ``waiting_since`` (RFC 3339) is its place in the queue, if that is
    not the end.
    """

    namespace: str
    job: str
    uid: str
    instance: int
    ipus: int
    gcds: int = 1
    replicas_per_gcd: int = 1
    priority: int = 0
    job_created_at: str | None = None
    preemptible: bool = False
    resumable: bool = False
    time_limit_s: float | None = None
    waiting_since: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBody:
    """The partition of one instance.

    ``controller`` is ``host:port`` of its controller (empty while several are asked), ``node_selector`` the labels of
    the nodes that reach it, ``name`` the vendor's name of it; names are reused, ``claim`` is an id that is unique over
    all controllers. ``message`` is a sentence, ``code`` stable; ``binding`` is present exactly when ``state`` is READY,
    ``until`` (RFC 3339) when it is RECLAIMING. ``fresh``: the proxy knew its claim before that was READY, so no job
    can have used it through a binding of an earlier proxy process.
    ``since`` is when the present state began (RFC 3339), ``version`` that of the change that published all this (not
    compared; empty: not published yet).
    ``starts_at`` (RFC 3339) is present while it waits and its controller can estimate by when it gets its devices, as
    things stand; ``unsure`` says why it cannot; both are empty before the first estimate.
    """

    namespace: str
    job: str
    uid: str
    instance: int
    state: str
    ipus: int
    name: str = ""
    claim: str = ""
    controller: str = ""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    message: str = ""
    since: str | None = None
    binding: BindingBody | None = None
    until: str | None = None
    fresh: bool = False
    starts_at: str | None = None
    unsure: str = ""
    version: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsBody:
    """``GET /v1/partitions``: all that have not ended; a watch continues from ``version``.

    ``complete`` is false while a controller does not respond: a partition that is missing here may still exist.
    """

    version: str
    complete: bool
    items: tuple[PartitionBody, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBody:
    """One event of ``GET /v1/partitions/watch`` (server-sent; ``id`` is its version): the new state of a partition.

    ``gone``: it has ended, and nothing of it is left.
    """

    partition: PartitionBody
    gone: bool = False


def is_given_back(partition: PartitionBody) -> bool:
    """Whether the partition is already being released permanently, so that the operator need not release it."""
    return partition.state == RELEASING and partition.code == GIVEN_BACK


def parse_version(version: str) -> tuple[str, int]:
    """The process and the number of a version; empty and -1 if it is no version."""
    match = _VERSION.fullmatch(version)
    return (match[1], int(match[2])) if match else ("", -1)
