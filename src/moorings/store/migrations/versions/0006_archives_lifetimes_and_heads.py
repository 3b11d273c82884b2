"""What leaves for archives, when keys expire, and what memory keeps of a job.

Nothing that was there changes: tables, indexes, and columns that may be empty. A controller of release 0005 that goes
on running beside this one reads and writes what it knows. It writes jobs without a head, which is then made of the job;
makes keys that never expire, takes expired ones, and refuses a replaced secret at once, not after its grace. The
indexes take seconds for each million events; PostgreSQL takes no events meanwhile.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("last", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False, autoincrement=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("holder", WORD, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("last", name="pk_archives"),
    )
    op.create_table(
        "spent_keys",
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("claim", WORD),
        sa.Column("run", WORD),
        sa.PrimaryKeyConstraint("digest", name="pk_spent_keys"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_outbox_name", "outbox", ["name", "seq"])
    op.create_index("ix_partitions_claim", "partitions", ["claim"])
    _index_where_set("claims", "ended_at", "id")
    _index_where_set("runs", "claim")
    _index_where_set("runs", "ended_at", "id")
    _index_where_set("idempotency_keys", "claim")
    _index_where_set("idempotency_keys", "run")
    op.add_column("access_keys", sa.Column("expires_at", sa.BigInteger()))
    op.add_column("access_keys", sa.Column("rotated_at", sa.BigInteger()))
    op.add_column("access_keys", sa.Column("old_digest", WORD))
    op.add_column("access_keys", sa.Column("old_until", sa.BigInteger()))
    op.add_column("runs", sa.Column("head", sa.Text()))


def _index_where_set(table: str, column: str, *others: str) -> None:
    there = sa.column(column).is_not(None)
    op.create_index(f"ix_{table}_{column}", table, [column, *others], sqlite_where=there, postgresql_where=there)
