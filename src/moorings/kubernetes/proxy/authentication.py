"""Authentication and rights: service accounts by their tokens, which the API server reviews (TokenReview).

The operator may do everything. The Pod of a job's launcher, by a token that is bound to it, may read that job's
partitions and reset its own instance's; all others may do nothing. Tokens are never stored or logged: results of
reviews are cached for a minute. ``tokens`` limits the cost of made-up tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.ipujob.names import account_name, launcher_name
from moorings.kubernetes.kube.api import TOKEN_REVIEW, KubeApi, KubeError
from moorings.kubernetes.kube.token_review import (
    CachedReview,
    ReviewCache,
    parse_bearer,
    parse_claims,
    parse_user,
    time_left_s,
)
from moorings.kubernetes.proxy_api.shapes import AUDIENCE

REMEMBERED_S = 60.0  # cache of a good token's account; at most until the token expires
REFUSED_S = 10.0  # cache of a refusal
ACCOUNT = "system:serviceaccount:"
POD_NAME = "authentication.kubernetes.io/pod-name"


@dataclass(frozen=True, slots=True)
class ProxyCaller:
    """The caller: a service account, whether it is the operator's, and the Pod of its token; empty: none."""

    user: str
    operator: bool
    pod: str = ""

    def may_see(self, namespace: str, job: str) -> bool:
        """Whether it may read a job's partitions: its Pod has the name of one of the job's launchers."""
        tail = self.pod.removeprefix(launcher_name(job, 0))
        number = tail.removeprefix("-")
        is_launcher = self.pod.startswith(launcher_name(job, 0)) and (
            not tail or (number.isdecimal() and number.isascii() and self.pod == launcher_name(job, int(number[:6])))
        )
        return self.operator or (self._is_of(namespace, job) and is_launcher)

    def may_use(self, namespace: str, job: str, instance: int) -> bool:
        """Whether it may reset an instance's partition: it is that instance's launcher."""
        return self.operator or (self._is_of(namespace, job) and self.pod == launcher_name(job, instance))

    def _is_of(self, namespace: str, job: str) -> bool:
        return self.user == f"{ACCOUNT}{namespace}:{account_name(job)}"


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """The owner of a token: the account (empty: not valid) and the Pod."""

    user: str
    pod: str = ""


class TokenAuthenticator:
    """Authenticates callers.

    Args:
        kube: reviews tokens.
        operators: service accounts that may do everything.
        now: a clock in seconds, for the age of results.
        clock: seconds since 1970, for the expiry of tokens.
    """

    def __init__(
        self,
        kube: KubeApi,
        operators: frozenset[str],
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube = kube
        self._operators = operators
        self._now = now
        self._clock = clock
        self._reviews: ReviewCache[ServiceAccount] = ReviewCache(now)

    async def authenticate(self, authorization: str, address: str = "") -> ProxyCaller:
        """The caller with this header.

        Args:
            authorization: the header.
            address: of the client, without the port.

        Raises:
            MooringsError: ``auth.missing``, ``auth.invalid``, ``kubernetes.unreachable``, ``controller.busy``.
        """
        token = parse_bearer(authorization, f"send a service account's token for the audience {AUDIENCE}")
        left_s = self._left_s(token)
        found = ServiceAccount("")
        if left_s > 0:
            found = await self._reviews.find(token, address, lambda: self._review(token, left_s))
        if not found.user:
            raise MooringsError(
                "auth.invalid", "the token is not valid here", hint=f"it must be for the audience {AUDIENCE}"
            )
        return ProxyCaller(found.user, found.user in self._operators, found.pod)

    def _left_s(self, token: str) -> float:
        """Time until a token expires; 0: its own claims are not for us, or it is no token."""
        claims = parse_claims(token)
        audiences = claims.get("aud")
        if AUDIENCE not in (audiences if isinstance(audiences, list) else [audiences]) or not _is_account(claims):
            return 0.0
        return time_left_s(claims, self._clock())

    async def _review(self, token: str, left_s: float) -> CachedReview[ServiceAccount]:
        """The account of a token, if it is valid, and for us."""
        body = {
            "apiVersion": TOKEN_REVIEW.api_version,
            "kind": TOKEN_REVIEW.name,
            "spec": {"token": token, "audiences": [AUDIENCE]},
        }
        try:
            answer = await self._kube.create(TOKEN_REVIEW, body)
        except KubeError as error:
            raise MooringsError(
                "kubernetes.unreachable",
                f"the API server did not review the token: {error.reason or error.status}",  # its message may repeat it
                hint="may this service account create tokenreviews?" if error.status == 403 else "",
                retryable=True,
            ) from None
        now = self._now()
        user = parse_user(answer)
        if user is None or AUDIENCE not in (answer["status"].get("audiences") or ()):
            return CachedReview(ServiceAccount(""), good=False, at=now, until=now + REFUSED_S)
        pods = user.extra.get(POD_NAME)
        pod = pods[0] if isinstance(pods, list) and pods and isinstance(pods[0], str) else ""
        return CachedReview(ServiceAccount(user.name, pod), good=True, at=now, until=now + min(REMEMBERED_S, left_s))


def _is_account(claims: Mapping[str, object]) -> bool:
    """Whether claims are those of a Kubernetes service account: the same one in ``sub`` and in Kubernetes' claim."""
    identity = claims.get("kubernetes.io")
    account = identity.get("serviceaccount") if isinstance(identity, dict) else None
    if not isinstance(identity, dict) or not isinstance(account, dict) or not claims.get("iss"):
        return False
    return claims.get("sub") == f"{ACCOUNT}{identity.get('namespace')}:{account.get('name')}"
