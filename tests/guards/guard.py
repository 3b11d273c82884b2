"""The guards of the laws: each a fragment of source, what stands there without the guard, and the tests that fail then.

A test that has never failed proves nothing. So guards are taken out (see ``test_guards``), and the page
docs/explanation/guards.md is made from this table. The seeded mutants of ``tests.mutation`` do not replace it: they do
not know which law a line is for. Markers in the source were refused: a reader of the source has no use for them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.source import Change

FENCING = "fencing"
LAWS = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", FENCING)


@dataclass(frozen=True, slots=True)
class Guard:
    """One guard.

    If the function moves to another file, or gets a new name, the entry still holds as long as only one place can be
    meant: see ``tests.mutation.source.locate``.

    Attributes:
        law: whose guard it is; ``FENCING`` serves laws 1 to 3 where there are several controllers.
        what: the guard, in words.
        file: where it stands, below ``src/moorings``.
        at: the qualified name of the function or class that has it; "" is the whole module.
        cut: a fragment of that function, there once; ``tests.mutation.source.Change`` says what it may be.
        put: what stands there without the guard; "" removes it.
        tests: pytest's names of tests that each fail without it.
    """

    law: str
    what: str
    file: str
    at: str
    cut: str
    put: str
    tests: tuple[str, ...]

    @property
    def slug(self) -> str:
        """Its name in pytest."""
        return re.sub(r"[^a-z0-9]+", "-", self.what.lower()).strip("-")

    @property
    def change(self) -> Change:
        """What is done to the source to take it out."""
        return Change(self.file, self.at, self.cut, self.put)
