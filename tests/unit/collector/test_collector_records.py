"""Segments of a board's journal at the collector: each record once, whatever comes again, and no segment is a blob."""

from __future__ import annotations

import hashlib
from random import Random

import pytest

from tidegauge.clocks import Stamp, Wall
from tidegauge.collector import retention
from tidegauge.collector.config import RetentionConfig
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.link.commands import chunk_topic, parse
from tidegauge.link.record_lane import RECORDS
from tidegauge.link.sender import Done, Outgoing, Refused, Sender
from tidegauge.link.transfer import FileRef, Publish, SendChunk, SenderLimits
from tidegauge.link.wire import AlarmChange
from tidegauge.spool.planner import DropReason
from tidegauge.spool.records import HistoryRecord, Record, Tombstone, encode_line

DEVICE = "cam-1"


def stamp(second: float) -> Stamp:
    return Stamp(1.78e9 + second, "boot", second)


def hour(number: int) -> HistoryRecord:
    return HistoryRecord(f"h-{number}", 3, number, stamp(3600.0 * number), stamp(3600.0 * number + 3600), "enhancer")


def lost(bundle: str) -> Tombstone:
    return Tombstone(bundle, DropReason.EVICTED, stamp(50.0), stamp(1.0), "loss/accelerator", 0.4, 5000)


def lines(*records: Record) -> bytes:
    return b"".join(encode_line(record) for record in records)


def send(shelf: Shelf, data: bytes, forget: bool = False) -> list[Done | Refused]:
    """With the board's own sender. `forget`: each message meets a collector that has just been started."""
    sha256 = hashlib.sha256(data).hexdigest()
    sender = Sender(DEVICE, SenderLimits(chunk=4096), Random(1))
    outgoing = Outgoing("s", FileRef(sha256, len(data), "0000000001.log", {"kind": RECORDS}))
    todo = [*sender.add(outgoing, 0.0), *sender.connected(None, 0.0)]
    reception = Reception(DEVICE, sha256, shelf)
    ends: list[Done | Refused] = []
    while todo and not ends:
        action = todo.pop(0)
        if isinstance(action, Done | Refused):
            ends.append(action)
        elif isinstance(action, Publish | SendChunk):
            topic, payload = (action.topic, action.payload) if isinstance(action, Publish) else _chunk(action, data)
            if forget:
                reception.record()
                reception = Reception(DEVICE, sha256, shelf)
            todo += sender.sent(0.0)
            for answer in reception.handle([(topic, parse(topic).command, payload)], 0.0):
                todo += sender.response(answer, 0.0)
    return ends


def _chunk(action: SendChunk, data: bytes) -> tuple[str, bytes]:
    payload = data[action.offset : action.offset + action.length]
    return chunk_topic(DEVICE, action.file_id, action.offset, hashlib.sha256(payload).hexdigest()), payload


def test_records_are_entered_each_once_in_the_order_of_the_board(shelf: Shelf) -> None:
    assert send(shelf, lines(hour(2), hour(1), lost("bundle-0007"))) == [Done("s")]
    assert send(shelf, lines(hour(1), hour(3)), forget=True) == [Done("s")]
    assert [row.decoded() for row in shelf.store.history(DEVICE)] == [hour(1), hour(2), hour(3)]
    assert [row.decoded() for row in shelf.store.given_up(DEVICE)] == [lost("bundle-0007")]
    assert shelf.store.history("cam-2") == []
    assert shelf.store.totals().blobs == 0


def test_a_segment_that_comes_again_is_free(shelf: Shelf) -> None:
    data = lines(hour(1))
    send(shelf, data)
    sha256 = hashlib.sha256(data).hexdigest()
    again = Reception(DEVICE, sha256, shelf)
    sender = Sender(DEVICE, SenderLimits(), Random(1))
    sender.add(Outgoing("s", FileRef(sha256, len(data), "x.log", {"kind": RECORDS})), 0.0)
    (init, _) = sender.connected(None, 0.0)
    assert isinstance(init, Publish)
    (answer,) = again.handle([(init.topic, parse(init.topic).command, init.payload)], 0.0)
    assert answer.stored
    assert len(shelf.store.history(DEVICE)) == 1


def test_a_torn_line_is_counted_and_the_others_are_entered(shelf: Shelf) -> None:
    assert send(shelf, lines(hour(1)) + lines(hour(2))[:40]) == [Done("s")]
    assert [row.record for row in shelf.store.history(DEVICE)] == ["h-1"]
    assert b'tidegauge_collector_refused_total{reason="bad_record"} 1.0' in shelf.metrics.render()


def test_a_segment_that_is_too_large_is_refused(shelf: Shelf) -> None:
    (end,) = send(shelf, bytes((1 << 20) + 1))
    assert isinstance(end, Refused)
    assert end.reason == "too_large"


def test_a_tombstone_of_a_bundle_that_arrived_is_void(shelf: Shelf, bundle_maker) -> None:  # type: ignore[no-untyped-def]
    made = bundle_maker(bundle="bundle-0007")
    send(shelf, lines(lost("bundle-0007"), lost("bundle-0008")))
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(1.0))
    assert [row.record for row in shelf.store.given_up(DEVICE)] == ["bundle-0008"]


def test_old_rows_go_and_what_is_new_or_active_stays(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS", 2)  # several transactions
    store, day = shelf.store, 86400.0
    store.add_records(DEVICE, [hour(number) for number in range(5)], Wall(1 * day))
    store.add_records(DEVICE, [hour(number) for number in range(5, 8)], Wall(90 * day))
    for number, (at, active) in enumerate(((1, False), (1, True), (90, False))):
        change = AlarmChange(f"alarm-{number}", active, "loss", "accelerator", (), "It drifts.", 0.0, "boot", 0.0)
        store.set_alarm(DEVICE, change, Wall(at * day))
    now = Wall(100 * day)
    assert retention.forget_rows(store, RetentionConfig(), now) == (0, 0)
    assert retention.forget_rows(store, RetentionConfig(history_days=30), now) == (5, 0)
    assert [row.record for row in store.history(DEVICE)] == ["h-5", "h-6", "h-7"]
    assert retention.forget_rows(store, RetentionConfig(alarm_days=30), now) == (0, 1)
    assert [alarm.device for alarm in store.active_alarms()] == [DEVICE]
    assert retention.apply(store, shelf.blobs.delete, RetentionConfig(history_days=5), now) == (0, 0)
    assert store.history(DEVICE) == []
