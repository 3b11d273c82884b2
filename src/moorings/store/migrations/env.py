"""What alembic runs: the steps, in the transaction that ``store.upgrade`` has begun on the connection it passes."""

from __future__ import annotations

from alembic import context

from moorings.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters tables by copying them
)
with context.begin_transaction():
    context.run_migrations()
