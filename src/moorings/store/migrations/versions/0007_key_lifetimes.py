"""When an access key expires, and the secret that it had before.

Columns that may be empty: no key that is there expires. A controller of the release before that goes on running beside
this one makes such keys, takes expired ones, and refuses a replaced secret at once, not after its grace.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0005"
branch_labels = None
depends_on = None

WORD = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    op.add_column("access_keys", sa.Column("expires_at", sa.BigInteger()))
    op.add_column("access_keys", sa.Column("rotated_at", sa.BigInteger()))
    op.add_column("access_keys", sa.Column("old_digest", WORD))
    op.add_column("access_keys", sa.Column("old_until", sa.BigInteger()))
