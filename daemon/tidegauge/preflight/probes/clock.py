"""The check `clock`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok, warning

#: No board that runs this has a right clock before: 2025-01-01.
EARLIEST = 1735689600.0


def run(context: Context) -> Finding:
    link = context.settings.link if context.settings else None
    return judge(time.time(), tls=link is not None and bool(link.tls or link.ca or link.cert))


def judge(now: float, *, tls: bool) -> Finding:
    told = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC"
    if now >= EARLIEST:
        return ok(told)
    cure = (
        "let systemd-timesyncd or chrony set the clock (network, NTP server); a board without a battery boots in 1970"
    )
    if tls:
        return failed(f"the clock says {told}: no certificate is valid yet, so TLS with the broker fails", cure)
    return warning(f"the clock says {told}; records are re-dated once it is set", cure)


PROBE = Probe(
    id="clock",
    title="wall clock",
    why="with a clock of 1970 no certificate is valid, and records carry no date that a person can use",
    place="anywhere",
    run=run,
    needs_settings=False,
)
