"""Lists in pages: the meaning of ``limit`` and ``continue``, and the opaque token between two pages.

A token names the last item of a page, not a number of items, so no item is shown twice or left out because others came
or went in between. One extra item is read, to know whether there is another page.
"""

from __future__ import annotations

import asyncio
import binascii
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from moorings.core.model.errors import MooringsError
from moorings.ports.store import PageQuery
from moorings.wire.codec import encode

T = TypeVar("T")

ITEMS_A_READ = 100  # items read at once: the reads for each item block other requests
PART_S = 0.002  # how long items are written before others are served

dumps = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested page of a list.

    Attributes:
        kind: the list; a token of another list is refused.
        limit: the number of items.
        after: the key of the last item of the page before; None for the first page.
    """

    kind: str
    limit: int
    after: str | None

    @property
    def page(self) -> PageQuery:
        """The query for the store: one item more than the limit."""
        return PageQuery(self.limit + 1, self.after)

    async def read_page(self, read: Callable[[PageQuery], Awaitable[Sequence[T]]], key: Callable[[T], str]) -> list[T]:
        """The items for ``page``, read in pieces, so that others are served in between."""
        found: list[T] = []
        after, missing = self.after, self.limit + 1
        while missing:
            piece = await read(PageQuery(min(missing, ITEMS_A_READ), after))
            found.extend(piece)
            if len(piece) < min(missing, ITEMS_A_READ):
                break
            after, missing = key(piece[-1]), missing - len(piece)
        return found

    def split_page(self, items: Sequence[T], key: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
        """The items of this page, from those that ``page`` gave, and the token of the next page."""
        if len(items) <= self.limit:
            return items, None
        return items[: self.limit], build_token(self.kind, key(items[self.limit - 1]))

    def page_of(self, items: Sequence[T], key: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
        """The items of this page, from the whole list in the order of their keys."""
        ordered = sorted(items, key=key)
        after = self.after
        return self.split_page([item for item in ordered if after is None or key(item) > after], key)


async def encode_items(bodies: Iterable[object], pen: asyncio.Lock) -> list[str]:
    """Each of ``bodies`` as JSON; a writer holds ``pen`` for one round of the loop."""
    clock, rest = asyncio.get_running_loop().time, iter(bodies)
    items: list[str] = []
    while True:
        async with pen:
            until = clock() + PART_S
            for body in rest:
                items.append(dumps(encode(body)))
                if clock() >= until:
                    break
            else:
                return items
            await asyncio.sleep(0)  # still holding the pen: the next part, of any page, is for the next round


def build_token(kind: str, key: str) -> str:
    """The token that continues a list of ``kind`` after the item ``key``."""
    return urlsafe_b64encode(json.dumps([kind, key]).encode()).decode().rstrip("=")


def parse_token(kind: str, token: str) -> str:
    """The key in a token of ours.

    Raises:
        MooringsError: ``page.invalid``.
    """
    try:
        content = json.loads(urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        content = None
    match content:
        case [str(found), str(key)] if found == kind and key.isprintable():
            return key
    raise MooringsError(
        "page.invalid",
        f"continue is not a token of this list: {token[:40]!r}",
        hint="send what the page before gave as `continue`, or leave it out",
    )
