"""Records of the journal over a real broker: ahead of bundles, through restarts, and deleted when they are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

from integration.link_peer import DEVICE, TinyCollector, assert_whole, link, mosquitto, poll, put_bundle, running
from tidegauge.clocks import stamp
from tidegauge.link.uplink import Uplink
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.records import HistoryRecord, parse
from tidegauge.spool.store import Spool

LIMITS = SpoolLimits(headroom_mib=0, headroom_files=0)


def keep(spool: Spool, *numbers: int) -> None:
    for number in numbers:
        now = stamp()
        spool.keep(HistoryRecord(f"h-{number}", 1, number, now, now, "m"))


def received(collector: TinyCollector) -> list[str]:
    """Ids of all records, of whole files only."""
    found = [parse(data).records for data in collector.stored.values() if data[8:9] == b" "]
    return sorted(record.id for records in found for record in records)


def test_records_overtake_a_bundle_and_survive_a_killed_broker(tmp_path: Path) -> None:
    async def test() -> None:
        spool = Spool(tmp_path / "spool", LIMITS)
        manifest = put_bundle(spool, "bundle-0001", (4_000_000,))
        keep(spool, *range(30))  # a full segment, and one that was begun
        async with mosquitto(tmp_path) as broker:
            collector = TinyCollector(link(broker.port), spool)
            await collector.start()
            # So slow that the bundle takes seconds on any machine.
            uplink = Uplink(link(broker.port, bytes_per_second=1_000_000), DEVICE, spool, 1)
            async with running(uplink):
                await collector.until(lambda: len(received(collector)) == 30)
                await collector.until(lambda: collector.chunks >= 20)
                assert spool.pending(), "the bundle is still on its way"
                keep(spool, 30)
                uplink.wake()
                await collector.until(lambda: len(received(collector)) == 31)
                assert spool.pending(), "a record did not wait for it"
                keep(spool, 31)
                broker.kill()
                broker.start()
                await poll(lambda: not spool.pending() and not spool.journal.close())
            assert_whole(collector, manifest)
            assert received(collector) == sorted(f"h-{number}" for number in range(32))
            await collector.stop()
        assert Spool(tmp_path / "spool", LIMITS).journal.close() == []

    asyncio.run(asyncio.wait_for(test(), 150))


def test_bundles_go_in_the_order_of_what_they_tell(tmp_path: Path) -> None:
    async def test() -> None:
        spool = Spool(tmp_path / "spool", LIMITS)
        for number in range(4):
            put_bundle(spool, f"bundle-{number:04d}", (1000,))
        wanted = [entry.id for entry in spool.by_priority()]
        assert wanted == ["bundle-0000", "bundle-0003", "bundle-0002", "bundle-0001"], "the first, then the newest"
        async with mosquitto(tmp_path) as broker:
            collector = TinyCollector(link(broker.port), spool)
            await collector.start()
            uplink = Uplink(link(broker.port), DEVICE, spool, 1)
            order: list[str] = []
            remove = spool.remove
            spool.remove = lambda bundle: (order.append(bundle), remove(bundle))[1]  # type: ignore[method-assign]
            async with running(uplink):
                await poll(lambda: not spool.pending())
            await collector.stop()
        assert order == wanted

    asyncio.run(asyncio.wait_for(test(), 150))
