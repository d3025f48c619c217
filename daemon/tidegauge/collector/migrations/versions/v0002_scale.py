"""Several processes, incomplete bundles, policies, retention, findings."""

from __future__ import annotations

import time
import uuid

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.drop_table("schema_version")
    identity = op.create_table(
        "identity", sa.Column("collector", sa.Text, primary_key=True), sa.Column("made", sa.Float, nullable=False)
    )
    op.bulk_insert(identity, [{"collector": uuid.uuid4().hex, "made": time.time()}])
    for column in (
        sa.Column("fin", sa.Float, nullable=False, server_default="0"),
        sa.Column("verifying", sa.Float, nullable=False, server_default="0"),
    ):
        op.add_column("transfers", column)
    op.create_index("transfers_by_state", "transfers", ["state", "device"])
    for column in (
        sa.Column("sdk", sa.Text, nullable=False, server_default=""),
        sa.Column("artifacts", sa.Text, nullable=False, server_default=""),
        sa.Column("progress", sa.Float, nullable=False, server_default="0"),
        sa.Column("generation", sa.Integer, nullable=False, server_default="0"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("partial", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()),
    ):
        op.add_column("bundles", column)
    op.execute("UPDATE bundles SET progress = received")
    op.create_index("bundles_by_manifest", "bundles", ["manifest_sha256"])
    op.create_index("bundles_by_finding", "bundles", ["model", "artifacts", "culprit"])
    op.add_column("bundle_blobs", sa.Column("wanted", sa.Boolean, nullable=False, server_default=sa.true()))
    _tables()


def _tables() -> None:
    op.create_table(
        "condemned", sa.Column("sha256", sa.Text, primary_key=True), sa.Column("since", sa.Float, nullable=False)
    )
    op.create_table(
        "reports",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("bundle", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.ForeignKeyConstraint(["device", "bundle"], ["bundles.device", "bundles.bundle"]),
    )
    op.create_index("reports_by_hash", "reports", ["sha256"])
    op.create_table(
        "executors",
        sa.Column("executor", sa.Text, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("started", sa.Float, nullable=False),
        sa.Column("beat", sa.Float, nullable=False),
    )
    op.create_table(
        "pulled",
        sa.Column("device", sa.Text, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "library",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("added", sa.Float, nullable=False),
    )
    op.create_index("library_by_hash", "library", ["sha256"])
