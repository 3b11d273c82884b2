"""Guarantees and limits as text: ``pod64=16x2,4x1`` is two blocks of 16 and one of 4."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from moorings.core.model.errors import MooringsError
from moorings.wire.shapes import ShareShape

NONE = "none"
ANY_SUBSET = "any-subset"

_BLOCKS = re.compile(r"([1-9][0-9]{0,6})x([1-9][0-9]{0,6})")
_NUMBER = re.compile(r"[1-9][0-9]{0,6}")
_LIMIT = re.compile(r"[0-9]{1,10}")


def parse_guarantees(texts: Sequence[str], topology_of: Callable[[str], str]) -> dict[str, Mapping[str, int]]:
    """By pool, the number of blocks of each size; no sizes: nothing is guaranteed there.

    Args:
        texts: ``POOL=SIZExCOUNT,...``, ``POOL=DEVICES`` where devices go in any subset, or ``POOL=none``.
        topology_of: gives the type of a pool's topology; called only for a bare number.

    Raises:
        MooringsError: ``project.invalid``, or what ``topology_of`` raises.
    """
    found: dict[str, Mapping[str, int]] = {}
    for text in texts:
        pool, equals, blocks = text.partition("=")
        if not equals or not pool:
            raise _guarantee_error(text, "has no POOL=", "write --guarantee pod64=16x2,4x1")
        if pool in found:
            raise _guarantee_error(
                text, f"names pool {pool!r} again", "write all blocks of a pool once, as pod64=16x2,4x1"
            )
        found[pool] = _parse_blocks(text, pool, blocks, topology_of)
    return found


def _parse_blocks(text: str, pool: str, blocks: str, topology_of: Callable[[str], str]) -> Mapping[str, int]:
    if blocks == NONE:
        return {}
    if _NUMBER.fullmatch(blocks):
        if topology_of(pool) != ANY_SUBSET:
            raise _guarantee_error(
                text, f"does not say in which blocks of {pool}", f"one block of {blocks} is {pool}={blocks}x1"
            )
        return {"1": int(blocks)}
    counts: dict[str, int] = {}
    for part in blocks.split(","):
        match = _BLOCKS.fullmatch(part)
        if match is None:
            raise _guarantee_error(
                text, f"has {part[:40]!r}, which is no SIZExCOUNT", "two blocks of 16 and one of 4: 16x2,4x1"
            )
        if match[1] in counts:
            raise _guarantee_error(text, f"names blocks of {match[1]} twice", "add the two counts")
        counts[match[1]] = int(match[2])
    return counts


def _guarantee_error(text: str, what: str, hint: str) -> MooringsError:
    return MooringsError("project.invalid", f"guarantee {text[:80]!r} {what}", hint=hint)


def format_guarantees(shares: Sequence[ShareShape]) -> str:
    """Shares as on the command line: ``pod64=16x2,4x1 gpu=1x24``; empty: there are none."""
    return " ".join(f"{share.pool}={blocks_text(share.blocks)}" for share in shares)


def blocks_text(blocks: Mapping[str, int]) -> str:
    """Blocks of one pool, the largest first: ``16x2,4x1``."""
    ordered = sorted(blocks.items(), key=lambda block: int(block[0]), reverse=True)
    return ",".join(f"{size}x{count}" for size, count in ordered)


def parse_user_limits(texts: Sequence[str], before: Mapping[str, int]) -> dict[str, int]:
    """The limits of single users, by subject, after a change of those ``before``.

    Args:
        texts: ``SUBJECT=N``; ``SUBJECT=none``: it has none of its own; ``none``: all those before are removed.
        before: those that there are.

    Raises:
        MooringsError: ``project.invalid``.
    """
    changes: dict[str, int | None] = {}
    for text in texts:
        subject, equals, most = text.rpartition("=")
        if text == NONE:
            before = {}
        elif not equals or not subject:
            detail = f"user limit {text[:80]!r} is no SUBJECT=N"
            raise MooringsError("project.invalid", detail, hint="write --user-limit ann=8, or none to remove all")
        elif subject in changes:
            detail = f"user limit {text[:80]!r} names {subject[:80]!r} again"
            raise MooringsError("project.invalid", detail, hint="keep one of the two")
        else:
            changes[subject] = parse_limit(most)
    return {subject: most for subject, most in {**before, **changes}.items() if most is not None}


def format_user_limits(limits: Mapping[str, int]) -> str:
    """Limits of single users as text: ``ann=8,bob=0``; empty: there are none."""
    return ",".join(f"{subject}={most}" for subject, most in limits.items())


def parse_limit(text: str, what: str = "limit of devices") -> int | None:
    """Parse a limit of a project, called ``what``; ``none``: it has none of its own.

    Raises:
        MooringsError: ``project.invalid``.
    """
    if text == NONE:
        return None
    if not _LIMIT.fullmatch(text):
        raise MooringsError("project.invalid", f"{text[:40]!r} is no {what}", hint="use a whole number, or none")
    return int(text)
