"""Whose a record is, where a list or the event log is filtered for a caller.

Columns that may be empty, and indexes. Claims and runs get their project here, from what their row holds; events that
are there already get nothing, and are for admins. A controller of release 0007 that continues beside this one writes
rows without them: these are then seen by their subject and by admins, until this release changes them. The indexes take
seconds for each million events.
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
ROWS_AT_ONCE = 200  # a job without a head may have 0.4 MB
UNWRITTEN_PROJECT = "default"  # a project that is not written


def upgrade() -> None:
    op.add_column("claims", sa.Column("project", WORD))
    op.add_column("runs", sa.Column("project", WORD))
    for name in ("subject", "owner", "project"):
        op.add_column("outbox", sa.Column(name, WORD))
    _write_projects("claims", "spec")
    _write_projects("runs", "head", "job")
    op.create_index("ix_claims_subject", "claims", ["subject", "arrival", "id"])
    _index_where_set("claims", "project", "arrival", "id")
    _index_where_set("runs", "project", "created_at", "id")
    for name in ("subject", "owner", "project"):
        _index_where_set("outbox", name, "seq")


def _write_projects(table: str, *texts: str) -> None:
    """The project of each row, out of the first of its texts that is there."""
    connection = op.get_bind()
    there = sa.table(table, sa.column("id", WORD), sa.column("project", WORD), *(sa.column(text) for text in texts))
    first = sa.func.coalesce(*(there.c[text] for text in texts)) if len(texts) > 1 else there.c[texts[0]]
    page = sa.select(there.c.id, first).order_by(there.c.id).limit(ROWS_AT_ONCE)
    change = (
        sa.update(there).where(there.c.id == sa.bindparam("row")).values({there.c.project: sa.bindparam("charged")})
    )
    found = connection.execute(page).all()
    while found:
        connection.execute(change, [{"row": ident, "charged": _project_in(text)} for ident, text in found])
        found = connection.execute(page.where(there.c.id > found[-1][0])).all()


def _project_in(text: str) -> str | None:
    project = json.loads(text).get("project", UNWRITTEN_PROJECT)
    return project if isinstance(project, str) and project.isascii() and project.isprintable() else None


def _index_where_set(table: str, column: str, *others: str) -> None:
    there = sa.column(column).is_not(None)
    op.create_index(f"ix_{table}_{column}", table, [column, *others], sqlite_where=there, postgresql_where=there)
