"""Records of boards: history, and what was given up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "records",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("record", sa.Text, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
    )
    op.create_index("records_by_time", "records", ["device", "kind", "at"])
