"""Serves the operator's metrics to authorised readers only: TLS, then two requests to the API server.

The operator serves its metrics on a Unix socket in a folder that it shares with the guard alone: 127.0.0.1 is the
node's where the Pod uses the node's network, and open to all its Pods. The guard passes on a request whose token
belongs to an account (``TokenReview``) that may ``get`` the path ``/metrics`` (``SubjectAccessReview``). Both responses
are cached for a while, so that a scrape costs the API server little; ``kubernetes.kube.token_review`` limits the cost
of made-up tokens. Rejected: kube-rbac-proxy, which does the same; with a program of our own a site has one image less
to fetch and to trust.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from moorings.client.error_text import format_cause
from moorings.core.model.errors import MooringsError
from moorings.core.model.timestamps import SECOND
from moorings.kubernetes.kube.api import SUBJECT_ACCESS_REVIEW, TOKEN_REVIEW, KubeApi, KubeObject
from moorings.kubernetes.kube.token_review import (
    CachedReview,
    ReviewCache,
    UserInfo,
    parse_bearer,
    parse_claims,
    parse_user,
    time_left_s,
)
from moorings.net.problems import problem_response
from moorings.ports.clock import Clock

if TYPE_CHECKING:
    from starlette.requests import Request

log = logging.getLogger("moorings.kubernetes.metrics_guard")

PATH = "/metrics"
BELIEVED_S = 60.0  # cache of an allowed token, at most until the token expires; delay until a removed right ends
REFUSED_S = 5.0  # cache of a refusal; delay until a new right counts
READ_S = 10.0


def build_token_review(token: str) -> KubeObject:
    """The TokenReview of a token."""
    return {"metadata": {}, "spec": {"token": token}}


def build_access_review(user: UserInfo) -> KubeObject:
    """The SubjectAccessReview whether a user may read the metrics."""
    who = {"user": user.name, "uid": user.uid, "groups": list(user.groups), "extra": user.extra}
    return {"metadata": {}, "spec": {**who, "nonResourceAttributes": {"path": PATH, "verb": "get"}}}


def parse_allowed(review: KubeObject) -> bool:
    """Whether the user may. Only an explicit yes counts."""
    status = review.get("status") or {}
    return status.get("allowed") is True and status.get("denied") is not True


class RbacProxy:
    """Passes on requests for the metrics from users that may read them.

    Args:
        kube: the API server.
        http: for the metrics themselves; connects to the operator's socket.
        clock: the time.
        metrics: the address of the operator's metrics.
    """

    def __init__(self, kube: KubeApi, http: httpx2.AsyncClient, clock: Clock, metrics: str) -> None:
        self._kube = kube
        self._http = http
        self._clock = clock
        self._metrics = metrics
        self._reviews: ReviewCache[MooringsError | None] = ReviewCache(self._now)

    async def check(self, authorization: str, address: str = "") -> None:
        """Return if the bearer of this header may read the metrics.

        Args:
            authorization: the header.
            address: of the client, without the port.

        Raises:
            MooringsError: ``auth.missing``, ``auth.invalid``, ``auth.denied``, ``controller.busy``; or the API server
                gives no verdict.
        """
        token = parse_bearer(authorization, "send the token of a service account as Bearer")
        left_s = self._left_s(token)
        if left_s <= 0:
            raise _invalid()
        refusal = await self._reviews.find(token, address, lambda: self._review(token, left_s))
        if refusal is not None:
            raise MooringsError(refusal.code, refusal.detail, hint=refusal.hint)

    def _now(self) -> float:
        return self._clock.now() / SECOND

    def _left_s(self, token: str) -> float:
        """Time until a token expires; 0: it is no token. A Secret's token never expires; any issuer may be known."""
        claims = parse_claims(token)
        if not claims.get("iss") or not claims.get("sub"):
            return 0.0
        return time_left_s(claims, self._now()) if "exp" in claims else BELIEVED_S

    async def _review(self, token: str, left_s: float) -> CachedReview[MooringsError | None]:
        refusal = await self._check_access(token)
        now = self._now()
        lasts_s = min(BELIEVED_S, left_s) if refusal is None else REFUSED_S
        return CachedReview(refusal, good=refusal is None, at=now, until=now + lasts_s)

    async def _check_access(self, token: str) -> MooringsError | None:
        user = parse_user(await self._kube.create(TOKEN_REVIEW, build_token_review(token)))
        if user is None:
            return _invalid()
        if parse_allowed(await self._kube.create(SUBJECT_ACCESS_REVIEW, build_access_review(user))):
            return None
        log.warning("metrics.denied", extra={"user": user.name})
        return MooringsError(
            "auth.denied",
            f"{user.name} may not read the metrics",
            hint="bind the ClusterRole labelled component=metrics-reader to that account",
        )

    async def metrics(self, authorization: str, accept: str, address: str = "") -> Response:
        """The operator's metrics, for authorised readers.

        Raises:
            MooringsError: as ``check``; ``metrics.unavailable``.
        """
        await self.check(authorization, address)
        try:
            answer = await self._http.get(self._metrics, headers={"Accept": accept or "*/*"}, timeout=READ_S)
            answer.raise_for_status()
        except httpx2.HTTPError as error:
            raise MooringsError(
                "metrics.unavailable",
                f"the operator does not report its metrics: {format_cause(error)}",
                retryable=True,
            ) from error
        return Response(answer.content, media_type=answer.headers.get("Content-Type"))


def _invalid() -> MooringsError:
    return MooringsError("auth.invalid", "the token is not valid in this cluster")


def make_rbac_proxy_app(guard: RbacProxy) -> Starlette:
    """The guard's HTTP app: ``/metrics``, and ``/healthz`` for the kubelet."""

    async def metrics(request: Request) -> Response:
        headers = request.headers
        address = request.client.host if request.client else ""
        return await guard.metrics(headers.get("Authorization", ""), headers.get("Accept", ""), address)

    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("ok")

    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, MooringsError)
        return problem_response(error)

    async def unknown(request: Request, _error: Exception) -> Response:
        detail = f"there is no {request.url.path[:80]!r} here"
        return problem_response(MooringsError("path.unknown", detail, hint=f"GET {PATH}"))

    async def method(_request: Request, _error: Exception) -> Response:
        return problem_response(MooringsError("method.not_allowed", "this address takes GET alone"))

    return Starlette(
        routes=[Route(PATH, metrics, methods=["GET"]), Route("/healthz", healthz, methods=["GET"])],
        exception_handlers={
            MooringsError: refused,
            HTTPStatus.NOT_FOUND: unknown,
            HTTPStatus.METHOD_NOT_ALLOWED: method,
        },
    )
