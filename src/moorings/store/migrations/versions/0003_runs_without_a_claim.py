"""Runs that wait in another scheduler's queue have no claim of their own.

A column that may be empty from now on: a controller of release 0002 that goes on running beside this one reads and
writes what it knows. It starts no such run, and would refuse one that this one made.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:  # SQLite has no other way than a new table
        runs.alter_column("claim", existing_type=WORD, nullable=True)
