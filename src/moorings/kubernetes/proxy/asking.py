"""What the proxy asks a controller for, as values: owners, names, keys and the claims' requests.

Nothing of it is remembered: everything follows from the job and from what the controller says of the owner's claims.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from moorings.core.claims import NAME_CHARS_MAX, TIME_LIMIT_S_MAX, check_owner
from moorings.core.errors import MooringsError
from moorings.kubernetes.names import OWNER_KIND, owner
from moorings.kubernetes.proxy.shapes import PartitionRequest
from moorings.wire.shapes import CheckpointShape, ClaimRequest

HASH_CHARS = 6
UID_HASH_CHARS = 8  # of names that tell clusters of one name apart: another's must not be taken for ours
NAMES_MAX = 6  # tries with other names for one claim
JOB_CHARS = 24
INSTANCE_MAX = 99_999
IPUS_MAX = 1 << 20
PRIORITY_MAX = 1_000_000

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123, as a namespace is called
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """Whose partition it is: one instance of one job."""

    namespace: str
    job: str
    uid: str
    instance: int

    @property
    def key(self) -> str:
        """``namespace/job``."""
        return f"{self.namespace}/{self.job}"

    def owner(self, cluster: str) -> str:
        """Who holds its claim."""
        return owner(cluster, self.namespace, self.job, self.uid, self.instance)


def check_cluster(cluster: str) -> str:
    """``cluster`` if owners can name it.

    Raises:
        MooringsError: ``config.invalid``.
    """
    if not _CLUSTER.fullmatch(cluster):
        raise MooringsError(
            "config.invalid",
            f"the cluster name {cluster[:60]!r} is not allowed",
            hint="use up to 40 letters, digits, '.', '_' and '-'",
        )
    return cluster


def prefix_of(cluster: str) -> str:
    """What the owners of all claims of a cluster begin with."""
    return f"{OWNER_KIND}/{cluster}/"


def parse_instance_key(owner_text: str, cluster: str) -> InstanceKey | None:
    """Whose partition an owner's claim is for; None: it is none of this cluster's."""
    parts = owner_text.removeprefix(prefix_of(cluster)).split("/")
    if not owner_text.startswith(prefix_of(cluster)) or len(parts) != 4:
        return None
    namespace, job, uid, instance = parts
    if not instance.isdecimal() or not instance.isascii() or str(int(instance)) != instance:
        return None
    return InstanceKey(namespace, job, uid, int(instance))


def check_instance_key(namespace: str, job: str, uid: str, instance: int) -> InstanceKey:
    """The place, if it may be one.

    Raises:
        MooringsError: ``body.invalid``.
    """
    if not _LABEL.fullmatch(namespace):
        raise MooringsError("body.invalid", f"{namespace[:80]!r} is no namespace")
    if not _NAME.fullmatch(job):
        raise MooringsError("body.invalid", f"{job[:80]!r} is no job's name")
    if not _UID.fullmatch(uid):
        raise MooringsError("body.invalid", f"{uid[:80]!r} is no uid")
    if not 0 <= instance <= INSTANCE_MAX:
        raise MooringsError("body.invalid", f"instance {instance} is out of range")
    return InstanceKey(namespace, job, uid, instance)


def check_request(request: PartitionRequest, cluster: str) -> InstanceKey:
    """Whose partition is asked for, if the request makes sense; whether there are such partitions controllers say.

    Raises:
        MooringsError: ``body.invalid``, ``owner.invalid``.
    """
    place = check_instance_key(request.namespace, request.job, request.uid, request.instance)
    if not 1 <= request.ipus <= IPUS_MAX:
        raise MooringsError("body.invalid", f"ipus {request.ipus} is out of range", hint=f"ask for 1 to {IPUS_MAX}")
    if not 1 <= request.gcds <= request.ipus or not 1 <= request.replicas_per_gcd <= request.ipus:
        raise MooringsError("body.invalid", "gcds and replicasPerGcd are from 1 to ipus")
    if abs(request.priority) > PRIORITY_MAX:
        raise MooringsError("body.invalid", f"priority {request.priority} is out of range")
    if request.time_limit_s is not None and not 1 <= request.time_limit_s <= TIME_LIMIT_S_MAX:
        raise MooringsError("body.invalid", f"timeLimitS {request.time_limit_s:g} is out of range")
    check_owner(place.owner(cluster))
    return place


def claim_name(place: InstanceKey, cluster: str, attempt: int = 0, mark: str = "") -> str:
    """A claim's name: the job's, cut, then what makes it one of its own over namespaces and clusters.

    Args:
        place: whose it is.
        cluster: where.
        attempt: another number gives another name, where one is taken.
        mark: what tells the cluster from others of its name; empty: nothing does.
    """
    told = f"{cluster}/{place.namespace}/{place.uid}" + (f"/{attempt}" if attempt else "")
    told, chars = (f"{mark}/{told}", UID_HASH_CHARS) if mark else (told, HASH_CHARS)
    tail = f"-{hashlib.sha256(told.encode()).hexdigest()[:chars]}-{place.instance}"
    return place.job[: min(JOB_CHARS, NAME_CHARS_MAX - len(tail))] + tail


def is_clusters_claim(name: object, place: InstanceKey, cluster: str, mark: str) -> bool:
    """Whether a claim was made for this very cluster, as its name tells, and not for another one of the same name.

    One without any mark may be an earlier release's: it is ours, too.
    """
    return not mark or any(
        name == claim_name(place, cluster, attempt, one) for one in (mark, "") for attempt in range(NAMES_MAX)
    )


def claim_key(owner_text: str, ended: int) -> str:
    """The idempotency key of an owner's claim after so many that have ended."""
    digest = hashlib.sha256(f"{owner_text}\n{ended}".encode()).hexdigest()
    return f"kubernetes-{digest[:48]}-{ended}"


def claim_request(
    request: PartitionRequest,
    place: InstanceKey,
    cluster: str,
    projects: Mapping[str, str],
    *,
    waits: bool,
    attempt: int = 0,
    mark: str = "",
) -> ClaimRequest:
    """The claim to ask a controller for."""
    return ClaimRequest(
        size=request.ipus,
        gcds=request.gcds,
        replicas_per_gcd=request.replicas_per_gcd,
        name=claim_name(place, cluster, attempt, mark),
        owner=place.owner(cluster),
        project=projects.get(place.namespace, place.namespace),
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        preemptible=request.preemptible,
        checkpoint=CheckpointShape(resumable=request.resumable),
        queue="wait" if waits else "never",
        waiting_since=request.waiting_since,
    )
