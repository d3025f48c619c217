"""A one-second tick: how late it comes is the loop's lag; gauges that nobody else updates are set here."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from pathlib import Path

from tidegauge import log_output
from tidegauge.agent.health import Health
from tidegauge.agent.notify import Notifier
from tidegauge.agent.state import StateStore
from tidegauge.clocks import monotonic
from tidegauge.errors import TidegaugeError
from tidegauge.link import certificate_process, tls_slots
from tidegauge.link.config import LinkConfig
from tidegauge.link.uplink import Uplink
from tidegauge.log_kinds import CERTIFICATE_REFUSED
from tidegauge.metrics import HEALTH_STATES, LINK_FAULTS, AgentMetrics
from tidegauge.spool.planner import DropReason
from tidegauge.spool.store import Spool

log = logging.getLogger(__name__)

PERIOD = 1.0
MIB = 1024 * 1024
#: Seconds between two looks at the certificate: it may be renewed while the agent runs.
CERTIFICATE_PERIOD = 3600.0
#: Seconds after which a renewed one is usually in use.
CONNECT_SECONDS = 10.0


class Ticker:
    """`link`: settings of the link, whose certificate is looked at."""

    def __init__(
        self,
        metrics: AgentMetrics,
        store: StateStore,
        spool: Spool,
        uplink: Uplink,
        health: Health,
        notifier: Notifier,
        link: LinkConfig,
    ) -> None:
        self._metrics, self._store, self._spool, self._uplink = metrics, store, spool, uplink
        self._health, self._notifier = health, notifier
        self._drops: Counter[DropReason] = Counter()
        self._spool_faults = 0
        self._publishes: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._dropped_answers = 0
        self._lost = 0
        self._sent = self._refused = 0
        self._link, self._look_again = link, 0.0
        self._tried: int | None = None

    def reconfigure(self, link: LinkConfig) -> None:
        """Look at this certificate, at the next tick: it may also be a renewed one of the same name."""
        if not link.cert:
            self._metrics.certificate.clear()
        self._link, self._look_again = link, 0.0

    async def run(self) -> None:
        while True:
            before = monotonic()
            await asyncio.sleep(PERIOD)
            now = monotonic()
            self._health.ticked = now
            self._metrics.loop_lag.observe(max(0.0, now - before - PERIOD))
            self._metrics.now.set(now)
            verdict = self._health.judge(now)
            for state in HEALTH_STATES:
                self._metrics.state.labels(state).set(1 if state == verdict.state else 0)
            self._notifier.progress(now, verdict.ok, verdict.state)
            if self._store.disk.problem:
                self._store.save()
            self._metrics.disk_problem.set(1 if self._store.disk.problem else 0)
            self._look_at_log()
            await self._refresh()
            if self._link.cert and now >= self._look_again:
                self._look_again = now + CERTIFICATE_PERIOD
                await self._look_at_certificate()

    def _look_at_log(self) -> None:
        output = log_output.installed()
        if output is None:  # an agent inside of another program, which has a log of its own
            return
        output.tick()
        self._metrics.log_lost.inc(output.lost - self._lost)
        self._lost = output.lost

    async def _look_at_certificate(self) -> None:
        """When it ends, whether a new one is due, and whether one has come, which is tried at once."""
        link, state = self._link, self._uplink.state
        try:
            ends = await asyncio.to_thread(lambda: certificate_process.read(Path(tls_slots.in_use(link).cert)).ends)
            self._metrics.certificate.labels("link").set(ends)
            state.renewal = await asyncio.to_thread(tls_slots.request_if_due, link)
            came = await asyncio.to_thread(tls_slots.came, link)
        except (TidegaugeError, OSError) as error:
            log.error("%s", error, extra=CERTIFICATE_REFUSED.of())
            self._metrics.certificate.clear()  # the last known time would hide that it can't be read
            return
        if state.renewal:
            log.warning("%s", state.renewal, extra=CERTIFICATE_REFUSED.of())
        if came is not None and came != self._tried:
            self._tried, self._look_again = came, monotonic() + CONNECT_SECONDS
            log.info("a renewed certificate has come: connecting anew with it")
            self._uplink.reconfigure(link)

    async def _refresh(self) -> None:
        metrics = self._metrics
        usage = await asyncio.to_thread(self._spool.usage)
        metrics.spool_bytes.set(usage.bytes)
        metrics.spool_inodes.set(usage.inodes)
        metrics.spool_bundles.set(usage.bundles)
        metrics.spool_limit.set(self._spool.limits.max_mib * MIB)
        for reason, count in self._spool.drops.items():
            metrics.spool_dropped.labels(reason.value).inc(count - self._drops[reason])
            self._drops[reason] = count
        faults = self._spool.faults.total()
        metrics.spool_faults.inc(faults - self._spool_faults)
        self._spool_faults = faults
        state = self._uplink.state
        metrics.mqtt_connected.set(1 if state.connected else 0)
        dropped = state.dropped.total()
        metrics.answers_dropped.inc(dropped - self._dropped_answers)
        self._dropped_answers = dropped
        for kind in LINK_FAULTS:
            count = state.failures[kind]
            metrics.link_faults.labels(kind).inc(count - self._faults[kind])
            self._faults[kind] = count
        metrics.bundles_sent.inc(state.bundles_sent - self._sent)
        metrics.bundles_refused.inc(len(state.refused) - self._refused)
        self._sent, self._refused = state.bundles_sent, len(state.refused)
        for result, count in state.publishes.items():
            metrics.mqtt_publishes.labels(result).inc(count - self._publishes[result])
            self._publishes[result] = count
