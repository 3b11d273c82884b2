"""Who sees a row, as conditions of a query: ``core.model.visibility`` in SQL.

There are two forms. One condition for rows that are found another way, which no index is used for: SQLite would else
find all rows of a subject and sort them. And one selection for each way to see a row, each found and ordered by an
index, to be merged: so a list costs what its caller sees, not what the database holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, and_, bindparam, case, false, literal, or_, true

from moorings.core.model.access import APPLIANCE_OWNER_PREFIX, LOCAL_OWNER_PREFIX, RUN_OWNER_PREFIXES
from moorings.core.model.events import PUBLIC_EVENTS
from moorings.core.model.visibility import Visibility
from moorings.store.tables import claims, outbox, runs

PROJECTS_EACH_MAX: Final = 32  # more than that are looked for together, without an index
_AFTER_SLASH: Final = "0"  # the character after "/"


@dataclass(frozen=True, slots=True)
class OwnedTable:
    """The columns of a table that say whose a row is.

    Attributes:
        owners: the first parts of the owners in it; empty: any.
        public: rows that everybody sees, by the values of a column.
    """

    subject: ColumnElement[str]
    owner: ColumnElement[str]
    project: ColumnElement[str]
    owners: tuple[str, ...] = ()
    public: tuple[ColumnElement[str], tuple[str, ...]] | None = None

    def is_visible(self, visible: Visibility) -> ColumnElement[bool]:
        """The condition, without an index."""
        if visible.sees_all:
            return true()
        subject, owner, project = (literal("").concat(each) for each in (self.subject, self.owner, self.project))
        found = [subject == visible.subject] if visible.subject else []
        if self._may_own(visible):
            found += [owner == visible.owner_prefix, _is_below(owner, visible.owner_prefix)]
        if visible.projects:
            found.append(_is_any_of(project, visible.projects))
        if self.public is not None:
            column, values = self.public
            found.append(literal("").concat(column).in_(values))
        return or_(*found) if found else false()

    def each_visible(self, visible: Visibility) -> Iterator[ColumnElement[bool]]:
        """Conditions of which each visible row meets one or more; each is found by an index, as far as it helps."""
        if visible.subject:
            yield self.subject == visible.subject
        if self._may_own(visible):
            yield self.owner == visible.owner_prefix
            # An agent's may be most of all rows: to find and sort them costs more than to pass the others.
            owner = literal("").concat(self.owner) if visible.acts_for_many else self.owner
            yield _is_below(owner, visible.owner_prefix)
        if len(visible.projects) <= PROJECTS_EACH_MAX:
            for project in sorted(visible.projects):
                yield self.project == project
        else:
            yield _is_any_of(literal("").concat(self.project), visible.projects)
        if self.public is not None:
            column, values = self.public
            for value in values:
                yield column == value

    def _may_own(self, visible: Visibility) -> bool:
        first = visible.owner_prefix.partition("/")[0]
        return first != "" and (not self.owners or f"{first}/" in self.owners)


def _is_below(owner: ColumnElement[str], prefix: str) -> ColumnElement[bool]:
    return and_(owner >= f"{prefix}/", owner < f"{prefix}{_AFTER_SLASH}")


def _is_any_of(project: ColumnElement[str], names: frozenset[str]) -> ColumnElement[bool]:
    # In the statement's text: an old SQLite takes 999 parameters, and the letters of a name need no quotes.
    return project.in_(bindparam("projects", sorted(names), expanding=True, literal_execute=True, unique=True))


_RUN_OWNER = case((runs.c.kind.is_(None), literal(LOCAL_OWNER_PREFIX)), else_=literal(APPLIANCE_OWNER_PREFIX)).concat(
    runs.c.id
)
CLAIMS: Final = OwnedTable(claims.c.subject, claims.c.owner, claims.c.project)
RUNS: Final = OwnedTable(runs.c.subject, _RUN_OWNER, runs.c.project, RUN_OWNER_PREFIXES)
EVENTS: Final = OwnedTable(outbox.c.subject, outbox.c.owner, outbox.c.project, public=(outbox.c.name, PUBLIC_EVENTS))
