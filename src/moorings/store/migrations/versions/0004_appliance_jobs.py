"""Jobs of an appliance: workflow and kind can be searched, labels changed, and a run may be within another's claim.

Columns with defaults: a controller of release 0003 that goes on running beside this one reads and writes what it knows.
It starts no such run, and would take one that this one made for a plain run with a claim of its own.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("kind", WORD))
        runs.add_column(sa.Column("workflow", WORD))
        runs.add_column(sa.Column("within", sa.SmallInteger(), nullable=False, server_default="0"))
        runs.add_column(sa.Column("labels", sa.Text(), nullable=False, server_default="{}"))
    op.create_index("ix_runs_workflow", "runs", ["workflow", "created_at", "id"])
