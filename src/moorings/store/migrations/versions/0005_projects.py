"""Projects and what they used; of a claim: its cell, its last checkpoint, by when it is to yield, where it goes on.

Tables of their own and columns that may be empty: a controller of release 0004 that goes on running beside this one
reads and writes what it knows. It serves by priority and arrival alone, and leaves the new columns of a claim as they
stand.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    # Not in a batch, which may make the table anew: partitions and runs name its rows.
    op.add_column("claims", sa.Column("cell", WORD))
    op.add_column("claims", sa.Column("checkpoint_at", sa.BigInteger()))
    op.add_column("claims", sa.Column("asked_until", sa.BigInteger()))
    op.add_column("claims", sa.Column("kept_pool", WORD))
    op.add_column("claims", sa.Column("kept", WORD))
    op.create_table(
        "projects",
        sa.Column("name", WORD, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("project", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_projects"),
    )
    op.create_table(
        "project_usage",
        sa.Column("project", WORD, nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("project", name="pk_project_usage"),
    )
