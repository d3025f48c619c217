"""Which process is checking a file, so that a killed one's check is free as soon as its heart has stopped."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("transfers", sa.Column("verifier", sa.Text, nullable=False, server_default=""))
