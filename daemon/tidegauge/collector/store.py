"""What the collector knows, in a database: SQLite by default, the same statements on PostgreSQL."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, Table, func, select

from tidegauge.collector.access_rows import AccessRows
from tidegauge.collector.bundle_rows import BundleConflict, BundleRows, StoredReport
from tidegauge.collector.device_rows import DeviceRows
from tidegauge.collector.executor_rows import ExecutorRows
from tidegauge.collector.findings import FindingRows
from tidegauge.collector.fleet_rows import FleetRows
from tidegauge.collector.key_rows import KeyRows
from tidegauge.collector.library_rows import LibraryRows
from tidegauge.collector.page_rows import PageRows
from tidegauge.collector.record_rows import RecordRows
from tidegauge.collector.request_rows import RequestRows
from tidegauge.collector.tables import Totals, blobs, bundles, transfers

__all__ = ["BundleConflict", "Store", "StoredReport"]


class Store(
    AccessRows,
    BundleRows,
    DeviceRows,
    ExecutorRows,
    FindingRows,
    FleetRows,
    KeyRows,
    LibraryRows,
    PageRows,
    RecordRows,
    RequestRows,
):
    """All rows. Synchronous and thread-safe; the event loop calls it in a thread. Each method is one transaction."""

    def totals(self) -> Totals:
        with self._reading.begin() as connection:
            by_state = {
                table.name: {str(row[0]): int(row[1]) for row in connection.execute(_counts(table))}
                for table in (bundles, transfers)
            }
            count, size = connection.execute(select(func.count(), func.coalesce(func.sum(blobs.c.size), 0))).one()
        return Totals(bundles=by_state["bundles"], transfers=by_state["transfers"], blobs=count, blob_bytes=int(size))


def _counts(table: Table) -> Select[Any]:
    return select(table.c.state, func.count()).group_by(table.c.state)
