"""The tables, with as many of the laws as a database can enforce by itself.

Law 1 is the primary key of ``partition_devices``; foreign keys tie partitions and runs to claims; a primary key makes
an idempotency key unique. Code above may be wrong, or run twice: these stay true.

Every field of a record is a column, so that a person with an SQL shell can read and filter. Data that only our code
reads (the request, a whole job, reasons) is one JSON text. JSON types of databases were refused: SQLite has none, and
PostgreSQL's reorders keys and cannot hold every text. One row a device, not a range of devices, because only single
values can be a key; one table a record kind, not one of JSON documents, because constraints need columns.

Columns are in this order: what identifies a record and never changes, what is written once, what changes. ``saving``
reads that order from the marks ``IMMUTABLE`` and ``WRITE_ONCE``.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
)

IMMUTABLE: Final = {"fixed": True}  # never changes: a save that would change it is a conflict
WRITE_ONCE: Final = {"once": True}  # written with a new record, neither compared nor written again

BytewiseText = Text().with_variant(Text(collation="C"), "postgresql")  # ids and names sort by bytes on every database
Json = Text  # canonical and ASCII: the database can hold any text of users and vendors
TimestampMicros = BigInteger  # microseconds since 1970 UTC
RowNumber = BigInteger().with_variant(Integer, "sqlite")  # SQLite: INTEGER PRIMARY KEY is the row's own number


def _partial_index(column: Column[Any], *others: Column[Any]) -> None:
    """An index over the rows in which a column has a value."""
    Index(
        f"ix_{column.table.name}_{column.name}",
        column,
        *others,
        sqlite_where=column.is_not(None),
        postgresql_where=column.is_not(None),
    )


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# One row. Every write begins by raising ``seq`` here: that takes the write lock, checks the epoch and numbers the
# events, so they are numbered in the order of commits on every database (a sequence would not guarantee that).
installation = Table(
    "installation",
    metadata,
    Column("only", SmallInteger, primary_key=True, autoincrement=False),
    Column("id", BytewiseText, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("holder", BytewiseText, nullable=False),
    Column("led_at", TimestampMicros),
    # The address of the leader of ``url_epoch``. A leader of release 0001 raises the epoch without an address: the one
    # here is then another leader's.
    Column("url", BytewiseText, nullable=False, server_default=""),
    Column("url_epoch", BigInteger, nullable=False, server_default="0"),
    CheckConstraint('"only" = 1', name="one_row"),  # quoted: a keyword of PostgreSQL
)

claims = Table(
    "claims",
    metadata,
    Column("id", BytewiseText, primary_key=True, info=IMMUTABLE),
    Column("name", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("owner", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("subject", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("arrival", TimestampMicros, nullable=False, info=IMMUTABLE),
    Column("state", BytewiseText, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("broken", Integer, nullable=False),
    Column("pool", BytewiseText),
    Column("partition", BytewiseText),
    Column("spec", Json, nullable=False),
    Column("reason", Json),
    Column("granted_at", TimestampMicros),
    Column("ready_at", TimestampMicros),
    Column("ended_at", TimestampMicros),
    Column("lease_until", TimestampMicros),
    Column("cell", BytewiseText),
    Column("checkpoint_at", TimestampMicros),
    Column("asked_until", TimestampMicros),
    Column("kept_pool", BytewiseText),
    Column("kept", BytewiseText),
    Column("project", BytewiseText),  # null: a release before 0008 wrote the row, and has not changed it since
)
Index("ix_claims_arrival", claims.c.arrival, claims.c.id)
Index("ix_claims_state", claims.c.state, claims.c.arrival, claims.c.id)
Index("ix_claims_owner", claims.c.owner, claims.c.arrival, claims.c.id)
Index("ix_claims_name", claims.c.name, claims.c.arrival, claims.c.id)
Index("ix_claims_subject", claims.c.subject, claims.c.arrival, claims.c.id)
_partial_index(claims.c.project, claims.c.arrival, claims.c.id)
_partial_index(claims.c.ended_at, claims.c.id)

# Only live ones: a removed partition has no row, so its name and its devices are free.
partitions = Table(
    "partitions",
    metadata,
    Column("id", BytewiseText, primary_key=True, info=IMMUTABLE),
    Column("name", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("claim", BytewiseText, ForeignKey(claims.c.id), nullable=False, info=IMMUTABLE),
    Column("pool", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("block", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("gcds", Integer, nullable=False, info=IMMUTABLE),
    Column("replicas_per_gcd", Integer, nullable=False, info=IMMUTABLE),
    Column("state", BytewiseText, nullable=False),
    Column("since", TimestampMicros, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("reason", Json, nullable=False),
    UniqueConstraint("pool", "name"),
)
Index("ix_partitions_claim", partitions.c.claim)

# Law 1: a device is in at most one live partition.
partition_devices = Table(
    "partition_devices",
    metadata,
    Column("pool", BytewiseText, primary_key=True),
    Column("device", Integer, primary_key=True, autoincrement=False),
    Column("partition", BytewiseText, ForeignKey(partitions.c.id, ondelete="CASCADE"), nullable=False),
    sqlite_with_rowid=False,
)
Index("ix_partition_devices_partition", partition_devices.c.partition)

# Only devices out of service.
devices = Table(
    "devices",
    metadata,
    Column("pool", BytewiseText, primary_key=True),
    Column("device", Integer, primary_key=True, autoincrement=False),
    Column("state", BytewiseText, nullable=False),
    Column("reason", Json, nullable=False),
    Column("since", TimestampMicros, nullable=False),
    sqlite_with_rowid=False,
)

runs = Table(
    "runs",
    metadata,
    Column("id", BytewiseText, primary_key=True, info=IMMUTABLE),
    Column("name", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("engine", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("subject", BytewiseText, nullable=False, info=IMMUTABLE),
    Column("created_at", TimestampMicros, nullable=False, info=IMMUTABLE),
    Column(
        "within", SmallInteger, nullable=False, server_default="0", info=IMMUTABLE
    ),  # 1: in a claim that is not its own
    Column(
        "kind", BytewiseText, info=WRITE_ONCE
    ),  # of its part in an appliance's workflow; this and the next column are for searches
    Column("workflow", BytewiseText, info=WRITE_ONCE),
    Column("job", Json, nullable=False, info=WRITE_ONCE),
    Column("head", Json, info=WRITE_ONCE),  # the part of the job in memory; null: a release before 0006 wrote the row
    Column("claim", BytewiseText, ForeignKey(claims.c.id)),  # null: its engine's scheduler has it
    Column("state", BytewiseText, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("reference", BytewiseText),
    Column("started_at", TimestampMicros),
    Column("ended_at", TimestampMicros),
    Column("exit_code", Integer),
    Column("task_codes", Json, nullable=False),
    Column("stop_reason", Json, nullable=False),
    Column("detail", Json, nullable=False),
    Column("labels", Json, nullable=False, server_default="{}"),
    Column("checkpoints", Json),  # and the one it was given, and the pause of its user; null: none
    Column("project", BytewiseText),  # null: as in ``claims``
)
Index("ix_runs_workflow", runs.c.workflow, runs.c.created_at, runs.c.id)
Index("ix_runs_created_at", runs.c.created_at, runs.c.id)
Index("ix_runs_state", runs.c.state, runs.c.created_at, runs.c.id)
Index("ix_runs_subject", runs.c.subject, runs.c.created_at, runs.c.id)
Index("ix_runs_name", runs.c.name, runs.c.created_at, runs.c.id)
_partial_index(runs.c.claim)
_partial_index(runs.c.project, runs.c.created_at, runs.c.id)
_partial_index(runs.c.ended_at, runs.c.id)

# Written by admins, in a file or a command, and read as a whole: so no columns for fields that no query uses.
projects = Table(
    "projects",
    metadata,
    Column("name", BytewiseText, primary_key=True, info=IMMUTABLE),
    Column("version", BigInteger, nullable=False),
    Column("project", Json, nullable=False),
)

# Not in the row of its project: every end of an attempt changes it, and that must not conflict with an admin's change
# of the project. Without a foreign key: `default` is used whether or not it is defined.
project_usage = Table(
    "project_usage",
    metadata,
    Column("project", BytewiseText, primary_key=True),
    Column("used", BigInteger, nullable=False),
    Column("at", TimestampMicros, nullable=False),
)

# Of the records in the database. Once a record has left, its key is in ``spent_keys``.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("subject", BytewiseText, primary_key=True),
    Column("key", BytewiseText, primary_key=True),
    Column("digest", BytewiseText, nullable=False),
    Column("claim", BytewiseText),
    Column("run", BytewiseText),
    sqlite_with_rowid=False,
)
_partial_index(idempotency_keys.c.claim)
_partial_index(idempotency_keys.c.run)

# Permanent (law 5), so as small as possible: ``digest`` is of subject and key. Without foreign keys, because the key's
# record has left. A table of its own, because the previous release reads and writes the other one as before.
spent_keys = Table(
    "spent_keys",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("claim", BytewiseText),
    Column("run", BytewiseText),
    sqlite_with_rowid=False,
)

outbox = Table(
    "outbox",
    metadata,
    Column("seq", RowNumber, primary_key=True, autoincrement=False),
    Column("name", BytewiseText, nullable=False),
    Column("at", TimestampMicros, nullable=False),
    Column("claim", BytewiseText),
    Column("partition", BytewiseText),
    Column("run", BytewiseText),
    Column("pool", BytewiseText),
    Column("device", BytewiseText),
    Column("version", SmallInteger, nullable=False),
    Column("data", Text, nullable=False),
    # Whose the record is that it is about, for who may see it; null: nobody's, or a release before 0008 wrote the row.
    Column("subject", BytewiseText),
    Column("owner", BytewiseText),
    Column("project", BytewiseText),
)
Index("ix_outbox_name", outbox.c.name, outbox.c.seq)
_partial_index(outbox.c.claim, outbox.c.seq)
_partial_index(outbox.c.run, outbox.c.seq)
_partial_index(outbox.c.subject, outbox.c.seq)
_partial_index(outbox.c.owner, outbox.c.seq)
_partial_index(outbox.c.project, outbox.c.seq)

# Stretches of the event log that have left for a file; events up to ``last`` may no longer be in the database.
archives = Table(
    "archives",
    metadata,
    Column("last", RowNumber, primary_key=True, autoincrement=False),
    Column("first", BigInteger, nullable=False),
    Column("digest", BytewiseText, nullable=False),
    Column("holder", BytewiseText, nullable=False),
    Column("at", TimestampMicros, nullable=False),
)

access_keys = Table(
    "access_keys",
    metadata,
    Column("id", BytewiseText, primary_key=True),
    Column("subject", BytewiseText, nullable=False),
    Column("role", BytewiseText, nullable=False),
    Column("owner_prefix", BytewiseText, nullable=False),
    Column("digest", BytewiseText, nullable=False),
    Column("created_at", TimestampMicros, nullable=False),
    Column("revoked_at", TimestampMicros),
    Column("expires_at", TimestampMicros),  # null: never
    Column("rotated_at", TimestampMicros),
    Column("old_digest", BytewiseText),
    Column("old_until", TimestampMicros),
)
