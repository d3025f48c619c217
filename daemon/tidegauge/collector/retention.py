"""What is deleted by itself: bundles by age, by how their comparison ended, and by the room they take; runs by age.

The planner is pure. A bundle that is given up keeps its row, its answer and its manifest; its blobs and its report go,
unless something else needs them. A pinned one stays whatever the rules say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tidegauge.clocks import Wall
from tidegauge.collector.config import RetentionConfig
from tidegauge.collector.kept import ORDER, Kept
from tidegauge.collector.log_kinds import BUNDLE_GIVEN_UP, RETENTION_DONE
from tidegauge.collector.store import Store

_log = logging.getLogger(__name__)
_DAY, _HOUR = 86400.0, 3600.0
#: Blobs given up in one transaction, and rows deleted in one.
_BATCH, _ROWS = 500, 5000


class Given(msgspec.Struct, frozen=True):
    """A bundle to give up, and why."""

    device: str
    bundle: str
    reason: str
    own: int


class GivenRun(msgspec.Struct, frozen=True):
    """A comparison that somebody has asked for, to give up, and why."""

    run: str
    name: str
    reason: str


def plan(kept: Sequence[Kept], total: int, config: RetentionConfig, now: Wall) -> list[Given]:
    """Which bundles go. `total`: bytes of all blobs that anything needs. Pure."""
    days = {
        "culprit": config.culprit_days,
        "fine": config.fine_days,
        "uncertain": config.uncertain_days,
        "failed": config.failed_days,
    }
    out: list[Given] = []
    left: list[Kept] = []
    for item in kept:
        limit = days[item.kind]
        if not item.pinned and limit and now - item.received > limit * _DAY:
            out.append(Given(item.device, item.bundle, f"older than {limit:g} days ({item.kind})", item.own))
        elif not item.pinned:
            left.append(item)
    excess = total - sum(item.own for item in out) - config.max_bytes if config.max_bytes else 0
    for item in sorted(left, key=lambda each: (ORDER.index(each.kind), each.received)):
        if excess <= 0:
            break
        if item.own:
            out.append(Given(item.device, item.bundle, f"blobs take more than {config.max_bytes} bytes", item.own))
            excess -= item.own
    return out


def apply(store: Store, destroy: Callable[[str], None], config: RetentionConfig, now: Wall) -> tuple[int, int]:
    """Give up what the plan says, and delete blobs that nothing needs. Returns the numbers of both.

    `destroy` deletes a blob's bytes. A blob that came within `orphan_hours` stays: its bundle may be on the way.
    """
    given = due(store, config, now)
    give_up(store, given)
    while config.run_days and store.forget_runs(_before(config.run_days, now), _BATCH):
        pass
    before = Wall(now - config.orphan_hours * _HOUR)
    while store.condemn(before, now, _BATCH) == _BATCH:
        pass
    forget_rows(store, config, now)
    gone = store.execute(destroy)
    if given or gone:
        said = RETENTION_DONE.of(bundles=len(given), blobs=gone)
        _log.info("%d bundles are given up; %d blobs that nothing needs are deleted", len(given), gone, extra=said)
    return len(given), gone


def forget_rows(store: Store, config: RetentionConfig, now: Wall) -> tuple[int, int]:
    """Delete history and alarms that are older than the rules say, little by little. Returns the numbers of both."""
    found = []
    for days, forget in ((config.history_days, store.forget_records), (config.alarm_days, store.forget_alarms)):
        count = 0
        while days and (gone := forget(_before(days, now), _ROWS)):
            count += gone
        found.append(count)
    return found[0], found[1]


def due(store: Store, config: RetentionConfig, now: Wall) -> list[Given]:
    """What the rules would give up now."""
    if not any((config.culprit_days, config.fine_days, config.uncertain_days, config.failed_days, config.max_bytes)):
        return []
    return plan(store.kept(), store.needed_bytes() if config.max_bytes else 0, config, now)


def due_runs(store: Store, config: RetentionConfig, now: Wall) -> list[GivenRun]:
    """What the rules would give up now of what people have asked for."""
    if not config.run_days:
        return []
    reason = f"asked for more than {config.run_days:g} days ago"
    return [GivenRun(each.run, each.name, reason) for each in store.old_runs(_before(config.run_days, now))]


def _before(days: float, now: Wall) -> Wall:
    return Wall(now - days * _DAY)


def give_up(store: Store, given: Iterable[Given]) -> None:
    for item in given:
        said = BUNDLE_GIVEN_UP.of(device=item.device, bundle=item.bundle, reason=item.reason)
        _log.info("bundle %s of %s is given up: %s", item.bundle, item.device, item.reason, extra=said)
        store.expire(item.device, item.bundle, item.reason)
