"""What a collector does by itself from time to time. Every process does it; each thing bears being done twice."""

from __future__ import annotations

import logging

from tidegauge.clocks import Wall
from tidegauge.collector.jobs import Jobs
from tidegauge.collector.log_kinds import BUNDLE_INCOMPLETE
from tidegauge.collector.partial import Partials
from tidegauge.collector.store import Store

_log = logging.getLogger(__name__)
_DAY = 86400.0


def give_up_waiting(store: Store, jobs: Jobs, wait_days: float, now: Wall) -> int:
    """Bundles of which nothing has come for too long are compared with what is here. Returns their number.

    What still comes later completes them, and they are compared once more.
    """
    count = 0
    for row in store.overdue(Wall(now - wait_days * _DAY)):
        if store.settle(row.device, row.bundle):
            jobs.enqueue(row.device, row.bundle, row.generation)
            continue
        lacking = len(store.wanted(row.device, row.bundle))
        reason = f"{lacking} of {row.blobs_wanted} blobs have not come in {wait_days:g} days"
        said = BUNDLE_INCOMPLETE.of(device=row.device, bundle=row.bundle, lacking=lacking)
        _log.warning("bundle %s of %s: %s; it is compared without them", row.bundle, row.device, reason, extra=said)
        jobs.enqueue(row.device, row.bundle, store.again(row.device, row.bundle, partial=True))
        count += 1
    return count


def forget_transfers(store: Store, partials: Partials, wait_days: float, now: Wall) -> int:
    """Files that began and of which nothing has come for too long make room. Returns their number."""
    idle = store.open_transfers(idle_since=Wall(now - wait_days * _DAY))
    for item in idle:
        store.end_transfer(item.device, item.file_id, "aborted", f"nothing came for {wait_days:g} days", now)
        partials.discard(item.device, item.file_id)
    return len(idle)


def settle_waiting(store: Store, jobs: Jobs) -> None:
    """What a crash between two transactions has left behind."""
    for device, bundle, generation in store.in_state("received", "waiting_blobs"):
        if store.settle(device, bundle):
            jobs.enqueue(device, bundle, generation)
    jobs.settle(store)
