"""The checkpoints of a run, and the one that its present attempt was given.

A column that may be empty: a controller of release 0006 that continues beside this one neither reads nor writes it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("checkpoints", sa.Text()))
