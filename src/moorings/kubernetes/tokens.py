"""Tokens that the API server reviews, and what keeps those that are made up from costing it, and us, too much.

What a token says of itself is believed only where it speaks against it: one that is made up at random costs the API
server nothing. Of those that are made up with care, a client has no more reviewed at the same time than leave room for
others, and what was found of them pushes nothing out that was found of good ones. Tokens are never kept: what was found
is remembered under their digest.
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

from moorings.core.errors import MooringsError
from moorings.kubernetes.shares import DynamicLimit

RENEWED_S = 40.0  # older than that, a good one is reviewed anew while what was found is still used
REMEMBERED_MAX = 4096  # good ones, and as many bad ones
TOKEN_CHARS_MAX = 16_384
REVIEWS_MAX = 16  # at the same time, of tokens that were never good; one address: half of them
RENEWALS_MAX = 16  # of tokens that were

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CachedReview(Generic[T]):
    """What a review said, whether that is good, and from when until when it is believed, in seconds."""

    value: T
    good: bool
    at: float
    until: float


class ReviewCache(Generic[T]):
    """What is known of tokens, and what is being asked of them.

    Args:
        now: seconds, for how long what was found is remembered.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._good: dict[bytes, CachedReview[T]] = {}
        self._bad: dict[bytes, CachedReview[T]] = {}
        self._first: dict[bytes, asyncio.Task[CachedReview[T]]] = {}  # reviews of tokens that were never good
        self._renewals: dict[bytes, asyncio.Task[CachedReview[T]]] = {}
        self._places = DynamicLimit(REVIEWS_MAX)

    async def find(self, token: str, address: str, review: Callable[[], Awaitable[CachedReview[T]]]) -> T:
        """What is known of a token, or what ``review`` finds.

        Args:
            token: the token.
            address: who shows it, without the port.
            review: asks the API server; what it raises is raised here and not remembered.

        Raises:
            MooringsError: ``controller.busy``: too many are being reviewed, or too many for that address.
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
            has_room = len(reviews) < RENEWALS_MAX if was_good else self._places.take(address)
            if not has_room:
                raise MooringsError("controller.busy", "too many tokens are being reviewed", retryable=True)
            task = self._start(reviews, digest, review)
            if not was_good:
                task.add_done_callback(lambda _task: self._places.give(address))
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
        known = self._good if found.good else self._bad  # whoever sends bad ones pushes no good one out
        known[digest] = found
        while len(known) > REMEMBERED_MAX:
            del known[next(iter(known))]


async def _run(review: Callable[[], Awaitable[CachedReview[T]]]) -> CachedReview[T]:
    return await review()


def parse_claims(token: str) -> dict[str, object]:
    """What a JSON Web Token says, which nobody has verified; of what is none, or too long: nothing."""
    parts = token.split(".") if len(token) <= TOKEN_CHARS_MAX else []
    if len(parts) != 3 or not all(parts):
        return {}
    try:
        text = base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True)
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def expiry_of(claims: Mapping[str, object]) -> float | None:
    """When a token ends as it says itself, in seconds since 1970; None: it says no such thing."""
    ends = claims.get("exp")
    if not isinstance(ends, int | float):
        return None
    try:
        end = float(ends)
    except OverflowError:  # an int of hundreds of digits
        return None
    return end if math.isfinite(end) else None
