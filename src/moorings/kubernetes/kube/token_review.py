"""Token reviews by the API server, with limits on what made-up tokens cost it and us.

A token's own claims count only against it: one that is made up at random costs the API server nothing. Of those that
are made up with care, a client can have only a part of the concurrent reviews, and their results displace no results of
good tokens. Tokens are never stored: results are stored under their digest.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from moorings.core.model.errors import MooringsError
from moorings.kubernetes.kube.api import KubeObject
from moorings.net.limits import ClientLimit

RENEWED_S = 40.0  # the result of a good token is renewed after this age, and used meanwhile
REMEMBERED_MAX = 4096  # results of good tokens, and as many of bad ones
TOKEN_CHARS_MAX = 16_384
REVIEWS_MAX = 16  # concurrent ones, of tokens that were never good; one address: half of them
RENEWALS_MAX = 16  # concurrent ones, of tokens that were good

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedReview(Generic[T]):
    """The result of a review, whether it is good, and from when until when it is valid, in seconds."""

    value: T
    good: bool
    at: float
    until: float


class ReviewCache(Generic[T]):
    """Known results of token reviews, and the reviews under way.

    Args:
        now: a clock in seconds, for the age of results.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._good: dict[bytes, CachedReview[T]] = {}
        self._bad: dict[bytes, CachedReview[T]] = {}
        self._first: dict[bytes, asyncio.Task[CachedReview[T]]] = {}  # reviews of tokens that were never good
        self._renewals: dict[bytes, asyncio.Task[CachedReview[T]]] = {}
        self._places = ClientLimit(REVIEWS_MAX)

    async def find(self, token: str, address: str, review: Callable[[], Awaitable[CachedReview[T]]]) -> T:
        """The known result of a token, or that of ``review``.

        Args:
            token: the token.
            address: of the client, without the port.
            review: asks the API server; its errors are raised here and not stored.

        Raises:
            MooringsError: ``controller.busy``: too many reviews are under way, or too many for that address.
        """
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        now = self._now()
        for known in (self._good, self._bad):
            found = known.get(digest)
            if found is None or found.until <= now:
                continue
            if found.good and now - found.at > RENEWED_S and len(self._renewals) < RENEWALS_MAX:
                self._start(self._renewals, digest, review)
            return found.value
        was_good = digest in self._good
        reviews = self._renewals if was_good else self._first
        if digest not in reviews:
            has_room = len(reviews) < RENEWALS_MAX if was_good else self._places.acquire(address)
            if not has_room:
                raise MooringsError("controller.busy", "too many tokens are being reviewed", retryable=True)
            task = self._start(reviews, digest, review)
            if not was_good:
                task.add_done_callback(lambda _task: self._places.release(address))
        return (await asyncio.shield(reviews[digest])).value

    def _start(
        self,
        reviews: dict[bytes, asyncio.Task[CachedReview[T]]],
        digest: bytes,
        review: Callable[[], Awaitable[CachedReview[T]]],
    ) -> asyncio.Task[CachedReview[T]]:
        task = reviews.get(digest)
        if task is None:
            task = reviews[digest] = asyncio.create_task(_run(review))
            task.add_done_callback(lambda done: self._reviewed(reviews, digest, done))
        return task

    def _reviewed(
        self, reviews: dict[bytes, asyncio.Task[CachedReview[T]]], digest: bytes, task: asyncio.Task[CachedReview[T]]
    ) -> None:
        del reviews[digest]
        if task.cancelled() or task.exception() is not None:
            return
        found = task.result()
        for known in (self._good, self._bad):
            known.pop(digest, None)
        known = self._good if found.good else self._bad  # bad tokens displace no good ones
        known[digest] = found
        while len(known) > REMEMBERED_MAX:
            del known[next(iter(known))]


async def _run(review: Callable[[], Awaitable[CachedReview[T]]]) -> CachedReview[T]:
    return await review()


def parse_claims(token: str) -> dict[str, object]:
    """The unverified claims of a JSON Web Token; empty if it is none, or too long."""
    parts = token.split(".") if len(token) <= TOKEN_CHARS_MAX else []
    if len(parts) != 3 or not all(parts):
        return {}
    try:
        text = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def time_left_s(claims: Mapping[str, object], now: float) -> float:
    """Time until a token's expiry in its own claims, from ``now`` (seconds since 1970); 0: it has none."""
    ends = claims.get("exp")
    if not isinstance(ends, int | float):
        return 0.0
    try:
        end = float(ends)
    except OverflowError:  # an int of hundreds of digits
        return 0.0
    return end - now if math.isfinite(end) else 0.0


def parse_bearer(authorization: str, hint: str) -> str:
    """The token in an Authorization header.

    Raises:
        MooringsError: ``auth.missing``, with ``hint``.
    """
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise MooringsError("auth.missing", "no token was sent", hint=hint)
    return token.strip()


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The user of a token, as the API server returns it; ``groups`` and ``extra`` as in its JSON."""

    name: str
    uid: str
    groups: tuple[str, ...]
    extra: KubeObject


def parse_user(review: KubeObject) -> UserInfo | None:
    """The user in a TokenReview; None: the token is not valid."""
    status = review.get("status") or {}
    user = status.get("user") or {}
    if status.get("authenticated") is not True or not user.get("username"):
        return None
    return UserInfo(user["username"], user.get("uid") or "", tuple(user.get("groups") or ()), user.get("extra") or {})
