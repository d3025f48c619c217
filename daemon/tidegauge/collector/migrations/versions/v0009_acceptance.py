"""What a board runs, and how its acceptance stands, by its own word."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for name in ("sdk", "artifacts", "acceptance"):
        op.add_column("devices", sa.Column(name, sa.Text, nullable=False, server_default=""))
