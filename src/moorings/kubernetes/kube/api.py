"""The API server: kinds of objects, its errors and the few calls that we use. Objects are plain JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from moorings.core.model.errors import MooringsError

KubeObject = dict[str, Any]  # a Kubernetes object, as in its JSON

T = TypeVar("T")

CONFLICT_TRIES = 5


@dataclass(frozen=True, slots=True)
class ResourceType:
    """A kind of object, and its path on the API server."""

    group: str
    version: str
    name: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


POD = ResourceType("", "v1", "Pod", "pods")
CONFIG_MAP = ResourceType("", "v1", "ConfigMap", "configmaps")
SECRET = ResourceType("", "v1", "Secret", "secrets")
SERVICE = ResourceType("", "v1", "Service", "services")
SERVICE_ACCOUNT = ResourceType("", "v1", "ServiceAccount", "serviceaccounts")
NODE = ResourceType("", "v1", "Node", "nodes", namespaced=False)
NAMESPACE = ResourceType("", "v1", "Namespace", "namespaces", namespaced=False)
EVENT = ResourceType("", "v1", "Event", "events")
ROLE = ResourceType("rbac.authorization.k8s.io", "v1", "Role", "roles")
CLUSTER_ROLE = ResourceType("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
ROLE_BINDING = ResourceType("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings")
PRIORITY_CLASS = ResourceType("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", namespaced=False)
LEASE = ResourceType("coordination.k8s.io", "v1", "Lease", "leases")
TOKEN_REVIEW = ResourceType("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False)
SUBJECT_ACCESS_REVIEW = ResourceType(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False
)
MUTATING_WEBHOOK = ResourceType(
    "admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", False
)
VALIDATING_WEBHOOK = ResourceType(
    "admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations", False
)
DEPLOYMENT = ResourceType("apps", "v1", "Deployment", "deployments")


class KubeError(MooringsError):
    """An error of the API server.

    Args:
        status: HTTP status; 0 if there was no response.
        reason: of its Status: ``NotFound``, ``AlreadyExists``, ``Conflict``, ``Expired``, ``Invalid``...
        message: of its Status.
        retry_after_s: how long it asked to wait; 0 if it did not ask.
    """

    def __init__(self, status: int, reason: str, message: str, *, retry_after_s: float = 0.0) -> None:
        code = "kubernetes.unreachable" if status == 0 or status >= 500 or status == 429 else "kubernetes.refused"
        super().__init__(code, message, retryable=code == "kubernetes.unreachable" or status == 409)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ObjectList:
    """A whole list, and the version from which a watch continues."""

    items: Sequence[KubeObject]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event of a watch: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``."""

    type: str
    object: KubeObject


class KubeApi(Protocol):
    """Calls to the API server; all raise KubeError."""

    async def get(self, kind: ResourceType, name: str, namespace: str | None = None) -> KubeObject:
        """One object."""
        ...

    async def list(
        self,
        kind: ResourceType,
        namespace: str | None = None,
        *,
        labels: str = "",
        fields: str = "",
        trim: Callable[[KubeObject], KubeObject] | None = None,
    ) -> ObjectList:
        """All objects of a kind, in one namespace or in all, page by page, each as ``trim`` returns it."""
        ...

    def watch(
        self, kind: ResourceType, namespace: str | None = None, *, since: str, labels: str = "", fields: str = ""
    ) -> AsyncIterator[WatchEvent]:
        """Changes after ``since``, until the server ends the watch; raises KubeError 410 when ``since`` is too old."""
        ...

    async def create(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        """Create an object."""
        ...

    async def replace(self, kind: ResourceType, body: KubeObject, namespace: str | None = None) -> KubeObject:
        """Replace an object; with a ``resourceVersion`` in it only if the object is still at that version."""
        ...

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: KubeObject | Sequence[KubeObject],
        namespace: str | None = None,
        *,
        subresource: str = "",
    ) -> KubeObject:
        """Change an object: a JSON merge patch, or a JSON patch if ``body`` is a list."""
        ...

    async def delete(
        self,
        kind: ResourceType,
        name: str,
        namespace: str | None = None,
        *,
        uid: str = "",
        version: str = "",
        grace_s: int | None = None,
    ) -> None:
        """Delete an object, in the background; a missing one is no error.

        With ``uid`` only the object with that uid, with ``version`` (a resourceVersion) only at that version.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class ExpectedErrors:
    """A context that suppresses the API server's errors with one of these statuses or reasons.

    Args:
        expected: statuses, such as 404, or reasons, such as ``AlreadyExists``.
    """

    def __init__(self, *expected: int | str) -> None:
        self._expected = expected

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, KubeError) and (error.status in self._expected or error.reason in self._expected)


async def get_or_none(kube: KubeApi, kind: ResourceType, name: str, namespace: str | None = None) -> KubeObject | None:
    """The object, or None if it does not exist.

    Raises:
        KubeError: any other failure.
    """
    with ExpectedErrors(404):
        return await kube.get(kind, name, namespace)
    return None


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]]) -> T:
    """The result of ``attempt``, which reads an object and writes it, unless another client writes it first each time.

    Raises:
        KubeError: 409 (``AlreadyExists`` or ``Conflict``) after the last try; any other failure.
    """
    for _ in range(CONFLICT_TRIES - 1):
        with ExpectedErrors(409):
            return await attempt()
    return await attempt()
