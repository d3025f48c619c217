"""Keys of devices, and commands that wait for boards that are offline."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "device_keys",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("registered", sa.Boolean, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
    )
    op.create_table(
        "waiting_commands",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("command", sa.Text, primary_key=True),
        sa.Column("envelope", sa.LargeBinary, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
    )
