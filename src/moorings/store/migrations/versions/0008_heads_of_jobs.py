"""What memory keeps of a run's job, beside the job: a controller that starts reads the heads alone.

A column that may be empty: a controller of release 0005 that goes on running beside this one reads and writes the job,
which stays whole in its own column. Rows of before, and what that one writes, have no head: theirs is made of the job.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("head", sa.Text()))
