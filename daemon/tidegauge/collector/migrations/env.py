"""Run by Alembic: applies migrations on the connection that `upgrade` gives, in its transaction."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
