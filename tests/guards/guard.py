"""The guards of the laws: each a piece of source, the same without the guard, and the tests that fail then.

A test that has never failed proves nothing. So every guard is taken out once in every ``make test`` (see
``test_guards``), and the page docs/explanation/guards.md is made from this table. A general mutation tester was
refused: it makes thousands of changes that mean nothing, takes hours, and does not know which law a line is for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FENCING = "fencing"
LAWS = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", FENCING)


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard.

    Attributes:
        law: whose guard it is; ``FENCING`` serves laws 1 to 3 where there are several controllers.
        what: the guard, in words.
        file: where it stands, below ``src/moorings``.
        old: a piece of that file, there once.
        new: the same without the guard.
        tests: pytest's names of tests that each fail without it.
    """

    law: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def slug(self) -> str:
        """Its name in pytest."""
        return re.sub(r"[^a-z0-9]+", "-", self.what.lower()).strip("-")
