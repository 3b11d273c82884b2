"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
ROW_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _installation()
    _claims()
    _partitions()
    _devices()
    _runs()
    _keys()
    _outbox()


def _installation() -> None:
    op.create_table(
        "installation",
        sa.Column("only", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("id", WORD, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("holder", WORD, nullable=False),
        sa.Column("led_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("only", name="pk_installation"),
        sa.CheckConstraint('"only" = 1', name=op.f("ck_installation_one_row")),
    )


def _claims() -> None:
    op.create_table(
        "claims",
        sa.Column("id", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("owner", WORD, nullable=False),
        sa.Column("subject", WORD, nullable=False),
        sa.Column("arrival", sa.BigInteger(), nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("broken", sa.Integer(), nullable=False),
        sa.Column("pool", WORD),
        sa.Column("partition", WORD),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("granted_at", sa.BigInteger()),
        sa.Column("ready_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("lease_until", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_claims"),
    )
    op.create_index("ix_claims_arrival", "claims", ["arrival", "id"])
    op.create_index("ix_claims_state", "claims", ["state", "arrival", "id"])
    op.create_index("ix_claims_owner", "claims", ["owner", "arrival", "id"])
    op.create_index("ix_claims_name", "claims", ["name", "arrival", "id"])


def _partitions() -> None:
    op.create_table(
        "partitions",
        sa.Column("id", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("claim", WORD, nullable=False),
        sa.Column("pool", WORD, nullable=False),
        sa.Column("block", WORD, nullable=False),
        sa.Column("gcds", sa.Integer(), nullable=False),
        sa.Column("replicas_per_gcd", sa.Integer(), nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_partitions"),
        sa.UniqueConstraint("pool", "name", name="uq_partitions_pool_name"),
        sa.ForeignKeyConstraint(["claim"], ["claims.id"], name="fk_partitions_claim"),
    )
    op.create_table(
        "partition_devices",
        sa.Column("pool", WORD, nullable=False),
        sa.Column("device", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", WORD, nullable=False),
        sa.PrimaryKeyConstraint("pool", "device", name="pk_partition_devices"),
        sa.ForeignKeyConstraint(
            ["partition"], ["partitions.id"], name="fk_partition_devices_partition", ondelete="CASCADE"
        ),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_partition_devices_partition", "partition_devices", ["partition"])


def _devices() -> None:
    op.create_table(
        "devices",
        sa.Column("pool", WORD, nullable=False),
        sa.Column("device", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pool", "device", name="pk_devices"),
        sqlite_with_rowid=False,
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", WORD, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("engine", WORD, nullable=False),
        sa.Column("subject", WORD, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("claim", WORD, nullable=False),
        sa.Column("state", WORD, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reference", WORD),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("ended_at", sa.BigInteger()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("task_codes", sa.Text(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.ForeignKeyConstraint(["claim"], ["claims.id"], name="fk_runs_claim"),
    )
    op.create_index("ix_runs_created_at", "runs", ["created_at", "id"])
    op.create_index("ix_runs_state", "runs", ["state", "created_at", "id"])
    op.create_index("ix_runs_subject", "runs", ["subject", "created_at", "id"])
    op.create_index("ix_runs_name", "runs", ["name", "created_at", "id"])


def _keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("subject", WORD, nullable=False),
        sa.Column("key", WORD, nullable=False),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("claim", WORD),
        sa.Column("run", WORD),
        sa.PrimaryKeyConstraint("subject", "key", name="pk_idempotency_keys"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "access_keys",
        sa.Column("id", WORD, nullable=False),
        sa.Column("subject", WORD, nullable=False),
        sa.Column("role", WORD, nullable=False),
        sa.Column("owner_prefix", WORD, nullable=False),
        sa.Column("digest", WORD, nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_access_keys"),
    )


def _outbox() -> None:
    op.create_table(
        "outbox",
        sa.Column("seq", ROW_NUMBER, autoincrement=False, nullable=False),
        sa.Column("name", WORD, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("claim", WORD),
        sa.Column("partition", WORD),
        sa.Column("run", WORD),
        sa.Column("pool", WORD),
        sa.Column("device", WORD),
        sa.Column("version", sa.SmallInteger(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_outbox"),
    )
    for name in ("claim", "run"):
        known = sa.column(name).is_not(None)
        op.create_index(f"ix_outbox_{name}", "outbox", [name, "seq"], sqlite_where=known, postgresql_where=known)
