"""The proxy's requests to controllers, as values: owners, names, keys and claims.

Nothing of it is stored: it all follows from the job and from the controller's list of the owner's claims.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from moorings.core.model.claims import NAME_CHARS_MAX, TIME_LIMIT_S_MAX, check_owner
from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.names import OWNER_KIND, owner
from moorings.kubernetes.proxy_api.shapes import PartitionRequest
from moorings.wire.shapes import CheckpointShape, ClaimRequest

HASH_CHARS = 6
UID_HASH_CHARS = 8  # of names that distinguish clusters with one name: another's claim must not count as ours
NAMES_MAX = 6  # tries with other names for one claim
JOB_CHARS = 24
INSTANCE_MAX = 99_999
IPUS_MAX = 1 << 20
PRIORITY_MAX = 1_000_000

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # RFC 1123, the rule of namespaces
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9-]{1,64}")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True)
class InstanceKey:
    """The key of an instance of a job."""

    namespace: str
    job: str
    uid: str
    instance: int

    @property
    def key(self) -> str:
        """``namespace/job``."""
        return f"{self.namespace}/{self.job}"

    def owner(self, cluster: str) -> str:
        """The holder of its claim."""
        return owner(cluster, self.namespace, self.job, self.uid, self.instance)


def check_cluster(cluster: str) -> str:
    """``cluster`` if it is valid in owners.

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
    """The common prefix of the owners of all claims of a cluster."""
    return f"{OWNER_KIND}/{cluster}/"


def parse_instance_key(owner_text: str, cluster: str) -> InstanceKey | None:
    """The instance of a claim's owner; None: it is not of this cluster."""
    parts = owner_text.removeprefix(prefix_of(cluster)).split("/")
    if not owner_text.startswith(prefix_of(cluster)) or len(parts) != 4:
        return None
    namespace, job, uid, instance = parts
    if not instance.isdecimal() or not instance.isascii() or str(int(instance)) != instance:
        return None
    return InstanceKey(namespace, job, uid, int(instance))


def check_instance_key(namespace: str, job: str, uid: str, instance: int) -> InstanceKey:
    """The key of an instance, if it is valid.

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
    """The instance of a request, if the request is valid; the controllers decide whether such partitions exist.

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
    """A claim's name: the job's, cut, then a suffix that makes it unique across namespaces and clusters.

    Args:
        place: the instance.
        cluster: its cluster.
        attempt: another number gives another name, if one is taken.
        mark: distinguishes clusters of one name; empty: nothing does.
    """
    identity = f"{cluster}/{place.namespace}/{place.uid}" + (f"/{attempt}" if attempt else "")
    identity, chars = (f"{mark}/{identity}", UID_HASH_CHARS) if mark else (identity, HASH_CHARS)
    tail = f"-{hashlib.sha256(identity.encode()).hexdigest()[:chars]}-{place.instance}"
    return place.job[: min(JOB_CHARS, NAME_CHARS_MAX - len(tail))] + tail


def is_clusters_claim(name: object, place: InstanceKey, cluster: str, mark: str) -> bool:
    """Whether a claim was made for this very cluster, as its name shows, and not for another one of the same name.

    A claim without any mark may be an earlier release's: it counts as ours, too.
    """
    return not mark or any(
        name == claim_name(place, cluster, attempt, one) for one in (mark, "") for attempt in range(NAMES_MAX)
    )


def claim_key(owner_text: str, ended: int) -> str:
    """The idempotency key of an owner's next claim, after ``ended`` claims that have ended."""
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
    """The claim to request from a controller."""
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
