"""The fleet is sorted by drift and loss, and judged as a whole; runs are pinned."""

from __future__ import annotations

import msgspec
import sqlalchemy as sa
from alembic import op

from tidegauge.collector.measures import measures

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    for name in ("drift", "loss", "log_e"):
        op.add_column("devices", sa.Column(name, sa.Float))
    _fill(op.get_bind())
    op.create_index("devices_by_log_e", "devices", ["log_e"])
    op.add_column("runs", sa.Column("pinned", sa.Boolean, nullable=False, server_default=sa.false()))


def _fill(connection: sa.Connection) -> None:
    """From what each device has told last."""
    names = [sa.column("device", sa.Text), sa.column("detail", sa.JSON)]
    devices = sa.table("devices", *names, *(sa.column(name, sa.Float) for name in ("drift", "loss", "log_e")))
    known = connection.execute(sa.select(devices.c.device, devices.c.detail)).all()
    found = [{"name": row.device, **msgspec.structs.asdict(measures(row.detail))} for row in known]
    if found:
        change = sa.update(devices).where(devices.c.device == sa.bindparam("name"))
        values: dict[str, sa.BindParameter[float]] = {name: sa.bindparam(name) for name in ("drift", "loss", "log_e")}
        connection.execute(change.values(values), found)
