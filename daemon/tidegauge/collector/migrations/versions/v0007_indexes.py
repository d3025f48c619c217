"""Findings from their own index alone; active and newest alarms, and old records, without a look at all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    named, active = sa.text("culprit != ''"), sa.text("active")
    op.drop_index("bundles_by_finding", "bundles")
    op.create_index(
        "bundles_by_finding",
        "bundles",
        ["model", "artifacts", "sdk", "culprit", "culprit_cause", "device", "received"],
        postgresql_where=named,
        sqlite_where=named,
    )
    op.create_index("alarms_active", "alarms", ["device"], postgresql_where=active, sqlite_where=active)
    op.create_index("records_by_arrival", "records", ["received"])
    op.create_index("alarms_by_time", "alarms", ["received"])
