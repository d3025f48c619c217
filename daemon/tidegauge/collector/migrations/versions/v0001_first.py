"""The schema before there were migrations.

A database that has it already is not touched by this step. `coverage` is an `int8multirange` on PostgreSQL, which that
version did not know.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from tidegauge.collector.coverage import Coverage

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table("schema_version", sa.Column("version", sa.Integer, primary_key=True))
    op.create_table(
        "devices",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("session", sa.BigInteger, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("virtual", sa.Boolean, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("progress", sa.Float, nullable=False),
        sa.Column("alarm", sa.Text, nullable=False),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("last_seen", sa.Float, nullable=False),
    )
    op.create_table(
        "transfers",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("file_id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("coverage", Coverage, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("init", sa.JSON, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("updated", sa.Float, nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("stored", sa.Float, nullable=False),
    )
    _bundles()
    op.create_table(
        "alarms",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("alarm", sa.Text, primary_key=True),
        sa.Column("active", sa.Boolean, nullable=False),
        sa.Column("detector", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("symptoms", sa.JSON, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("wall", sa.Float, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
    )


def _bundles() -> None:
    op.create_table(
        "bundles",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("bundle", sa.Text, primary_key=True),
        sa.Column("manifest_sha256", sa.Text, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
        sa.Column("created", sa.Float, nullable=False),
        sa.Column("virtual", sa.Boolean, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("detector", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("symptoms", sa.JSON, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("loss", sa.Float),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("exit_code", sa.Integer),
        sa.Column("sentence", sa.Text, nullable=False),
        sa.Column("culprit", sa.Text, nullable=False),
        sa.Column("culprit_cause", sa.Text, nullable=False),
        sa.Column("coverage", sa.Float),
        sa.Column("seconds", sa.Float),
        sa.Column("report", sa.Boolean, nullable=False),
    )
    op.create_index("bundles_by_time", "bundles", ["received"])
    op.create_index("bundles_by_state", "bundles", ["state"])
    op.create_table(
        "bundle_blobs",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("bundle", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["device", "bundle"], ["bundles.device", "bundles.bundle"]),
    )
    op.create_index("bundle_blobs_by_hash", "bundle_blobs", ["sha256"])
