"""What the proxy is asked and what it answers, version 1; JSON as everywhere (``wire.codec``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from moorings.wire.shapes import BindingBody

AUDIENCE = "moorings-proxy"  # of the service account tokens that it takes

# States of a partition, as the operator needs to know them.
WAITING = "WAITING"  # in a controller's queue, or in several
PREPARING = "PREPARING"  # granted; the hardware is being configured
READY = "READY"  # it has a binding
RECLAIMING = "RECLAIMING"  # READY, and asked back: its Pods have until ``until`` to save their state and end
LOST = "LOST"  # it vanished under its job; what is left of it is held until it is released
FAILED = "FAILED"  # it can never be: message says why
RELEASING = "RELEASING"  # being removed
GIVEN_BACK = "partition.releasing"  # a code: it was given back for good; else it may wait again, when it only made room


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRequest:
    """``POST /v1/partitions``: the partition of one instance of a job; asking again is no second one.

    ``job_created_at`` (RFC 3339) is when the job was made: of a younger job than the proxy itself, no earlier proxy can
    have asked a controller that does not answer. ``preemptible``: it may be asked back; ``resumable``: its job goes on
    from a checkpoint, so that it may also be moved. ``time_limit_s`` is how long the partition is wanted at most.
    ``waiting_since`` (RFC 3339) is its place in the queue, where that is not the end.
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

    ``controller`` is ``host:port`` of who holds it (empty while several are asked), ``node_selector`` the labels of the
    nodes that reach it, ``name`` what the vendor calls it; names come again, ``claim`` is an id of its own over all
    controllers. ``message`` is a sentence, ``code`` stable; ``binding`` is there exactly when ``state`` is READY,
    ``until`` (RFC 3339) when it is RECLAIMING. ``fresh``: the proxy knew its claim before that was READY, so nobody
    whom an earlier proxy gave a binding can have used it.
    ``since`` is when the partition came to its present state (RFC 3339), ``version`` that of the change that told all
    this (no part of what is compared; empty: nobody was told yet).
    ``starts_at`` (RFC 3339) is there while it waits and its controller can say by when it has its devices, as things
    stand; ``unsure`` says why it cannot; both are empty before it was asked.
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
    """``GET /v1/partitions``: all that have not ended; a watch goes on from ``version``.

    ``complete`` is false while a controller does not answer: what is missing from the list may still exist.
    """

    version: str
    complete: bool
    items: tuple[PartitionBody, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBody:
    """One event of ``GET /v1/partitions/watch`` (server-sent; ``id`` is its version): a partition as it is now.

    ``gone``: it has ended, and nothing of it is left.
    """

    partition: PartitionBody
    gone: bool = False


def is_given_back(partition: PartitionBody) -> bool:
    """Whether the operator need do nothing more so that it ends."""
    return partition.state == RELEASING and partition.code == GIVEN_BACK
