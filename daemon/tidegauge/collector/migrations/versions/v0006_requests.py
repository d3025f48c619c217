"""Runs that people ask for, uploads, and commands signed here."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "runs",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("bundle", sa.Text, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("asked", sa.Float, nullable=False),
        sa.Column("parameters", sa.JSON, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("culprit", sa.Text, nullable=False),
        sa.Column("culprit_cause", sa.Text, nullable=False),
        sa.Column("coverage", sa.Float),
        sa.Column("seconds", sa.Float),
        sa.Column("finished", sa.Float, nullable=False),
    )
    op.create_index("runs_by_time", "runs", ["asked"])
    op.create_index("runs_by_source", "runs", ["source"])
    op.create_table(
        "run_files",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_index("run_files_by_hash", "run_files", ["sha256"])
    op.create_table(
        "uploads",
        sa.Column("upload", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("executor", sa.Text, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
    )
    op.create_index("uploads_by_time", "uploads", ["started"])
    op.create_table(
        "commands",
        sa.Column("command", sa.Text, primary_key=True),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("action", sa.JSON, nullable=False),
        sa.Column("issued", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("cure", sa.Text, nullable=False),
        sa.Column("step", sa.Text, nullable=False),
        sa.Column("verified", sa.Boolean, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
    )
    op.create_index("commands_by_device", "commands", ["device", "issued"])
