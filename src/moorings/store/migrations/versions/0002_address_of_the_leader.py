"""Where the leading controller can be reached, for those that stand by.

Only adds columns, with defaults: a controller of release 0001 that goes on running beside this one reads and writes
what it knows, and what it does not write is told apart by ``url_epoch``.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("installation", sa.Column("url", WORD, server_default="", nullable=False))
    op.add_column("installation", sa.Column("url_epoch", sa.BigInteger(), server_default="0", nullable=False))
