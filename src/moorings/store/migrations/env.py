"""Alembic's entry: runs the steps in the transaction that ``store.upgrade`` began on its connection."""

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
