"""The sender's own state machine against the collector's disk and database, without a broker between."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from tidegauge.clocks import Wall
from tidegauge.collector.config import LimitsConfig
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic, parse
from tidegauge.link.sender import Done, Refused
from tidegauge.link.wire import FileResponse, Init, encode
from unit.collector.reception_desk import DEVICE, Desk, begin, chunk, send


def test_bundle_arrives_whole_through_restarts(
    shelf: Shelf, bundle_maker: Callable[..., object], completed: list[tuple[str, str]]
) -> None:
    made = bundle_maker()
    assert send(Desk(shelf), made) == [Done("b")]
    row = shelf.store.bundle(DEVICE, "bundle-0001")
    assert row is not None and row.state == "complete" and row.blobs == row.blobs_held == 2
    assert completed == [(DEVICE, "bundle-0001")]
    for name, data in {**made.blobs, made.head_id: made.head}.items():  # type: ignore[attr-defined]
        assert shelf.blobs.get(name, len(data)) == data
    assert shelf.partials.keep_only(()) == 0  # nothing is left of the way here


def test_duplicate_is_free(shelf: Shelf, bundle_maker: Callable[..., object]) -> None:
    made = bundle_maker()
    desk = Desk(shelf)
    send(desk, made)
    before = desk.received
    assert send(desk, made) == [Done("b")]
    assert desk.received - before < 2048  # inits and fins only
    assert len(shelf.store.bundles()) == 1


def test_blobs_of_another_device_are_not_sent_again(
    shelf: Shelf, bundle_maker: Callable[..., object], completed: list[tuple[str, str]]
) -> None:
    desk = Desk(shelf)
    send(desk, bundle_maker())
    before = desk.received
    made = bundle_maker(device="cam-2")
    assert send(desk, made, "cam-2") == [Done("b")]
    assert desk.received - before < len(made.head) + 1024  # type: ignore[attr-defined]
    assert completed[-1] == ("cam-2", "bundle-0001")


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"{", "damaged"),
        (b'{"schema": 99}', "schema 99"),
        (b"[" * 100_000, "damaged"),
        (b"\xff\xfe", "damaged"),
    ],
)
def test_malformed_manifest_is_refused_with_a_reason(shelf: Shelf, head: bytes, why: str) -> None:
    class Bad:
        blobs: dict[str, bytes] = {}  # noqa: RUF012

    bad = Bad()
    bad.head = head  # type: ignore[attr-defined]
    (end,) = send(Desk(shelf), bad)
    assert isinstance(end, Refused) and why in end.reason
    (refused,) = shelf.store.refused()
    assert why in refused.reason and refused.device == DEVICE
    assert b'refused_total{reason="bad_manifest"} 1.0' in shelf.metrics.render()
    assert shelf.store.bundles() == []


def test_manifest_of_another_device_is_refused(shelf: Shelf, bundle_maker: Callable[..., object]) -> None:
    desk = Desk(shelf)
    stolen = bundle_maker(device="cam-9")
    (end,) = send(desk, stolen)
    assert isinstance(end, Refused) and "cam-9" in end.reason
    assert send(desk, stolen, "cam-9") == [Done("b")]
    (end,) = send(desk, stolen)  # held by now, and still not this device's
    assert isinstance(end, Refused) and "cam-9" in end.reason


def test_bundle_id_is_used_once(shelf: Shelf, bundle_maker: Callable[..., object]) -> None:
    desk = Desk(shelf)
    send(desk, bundle_maker())
    (end,) = send(desk, bundle_maker(loss=0.1))
    assert isinstance(end, Refused) and "before" in end.reason
    row = shelf.store.bundle(DEVICE, "bundle-0001")
    assert row is not None and row.loss == 0.9


def test_wrong_bytes_never_become_a_blob(shelf: Shelf) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"right")
    chunk(desk, file_id, 0, b"wrong")
    (answer,) = desk.handle(fin_topic(DEVICE, file_id, 5), b"")
    assert not answer.stored and answer.reason_description == "file_hash" and answer.missing == ((0, 5),)
    assert not shelf.blobs.has(file_id) and not shelf.store.has_blob(file_id)
    assert chunk(desk, file_id, 0, b"right").acked == ((0, 5),)
    assert desk.handle(fin_topic(DEVICE, file_id, 5), b"")[-1].stored


def test_coverage_whose_file_is_gone_is_asked_for_again(shelf: Shelf) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"0123456789")
    assert chunk(desk, file_id, 0, b"01234").acked == ((0, 5),)
    shelf.partials.discard(DEVICE, file_id)
    for offset, data in ((5, b"56789"), (0, b"01234"), (5, b"56789")):  # a bucket notices by the hash of the whole
        chunk(desk, file_id, offset, data)
        answers = desk.handle(fin_topic(DEVICE, file_id, 10), b"")
        if answers and answers[-1].stored:
            break
    assert answers[-1].stored and shelf.blobs.get(file_id, 10) == b"0123456789"


def test_stored_blob_that_was_lost_is_asked_for_again(shelf: Shelf) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"abc")
    chunk(desk, file_id, 0, b"abc")
    assert desk.handle(fin_topic(DEVICE, file_id, 3), b"")[-1].stored
    shelf.blobs.delete(file_id)
    _, answer = begin(desk, b"abc")
    assert not answer.stored and answer.missing == ((0, 3),)
    chunk(desk, file_id, 0, b"abc")
    assert desk.handle(fin_topic(DEVICE, file_id, 3), b"")[-1].stored


def test_limits_of_one_device(shelf: Shelf) -> None:
    limits = LimitsConfig(manifest_bytes=100, blob_bytes=1000, device_partial_bytes=1500, device_transfers=2)
    desk = Desk(dataclasses.replace(shelf, limits=limits))
    assert begin(desk, bytes(1001))[1].reason_description == "too_large"
    assert begin(desk, bytes(101), "manifest.json")[1].reason_description == "too_large"
    assert begin(desk, b"a" * 1000)[1].acked == () and begin(desk, b"a" * 1000)[1].reason_code == 0
    assert begin(desk, b"b" * 1000)[1].retry_after_ms > 0  # no room beside the first
    assert begin(desk, b"c" * 10)[1].retry_after_ms == 0
    assert begin(desk, b"d" * 10)[1].retry_after_ms > 0  # two are open


def test_stray_partial_files_go_at_start(shelf: Shelf) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"abc")
    chunk(desk, file_id, 0, b"a")
    shelf.partials.write(DEVICE, "f" * 64, 0, b"stray")
    known = [(item.device, item.file_id) for item in shelf.store.open_transfers()]
    assert shelf.partials.keep_only(known) == 1
    assert shelf.partials.exists(DEVICE, file_id)
    assert chunk(desk, file_id, 1, b"bc").acked == ((0, 3),)
    assert desk.handle(fin_topic(DEVICE, file_id, 3), b"")[-1].stored


def test_seen_without_a_status_is_unknown(shelf: Shelf) -> None:
    shelf.store.seen(DEVICE, Wall(5.0))
    (device,) = shelf.store.devices()
    assert (device.state, device.last_seen) == ("unknown", 5.0)
    assert msgspec.to_builtins(device)["phase"] == ""


def test_fin_said_again_and_again_does_not_put_off_the_word_incomplete(shelf: Shelf) -> None:
    """A board that asks more often than the grace is long must be told what is missing."""
    data = Random(5).randbytes(12_288)
    name = hashlib.sha256(data).hexdigest()
    init, fin = init_topic(DEVICE, name), fin_topic(DEVICE, name, len(data))
    reception = Reception(DEVICE, name, shelf)
    reception.handle([(init, parse(init).command, encode(Init("x", len(data), name, {"kind": "blob"})))], 100.0)
    for offset in (0, 8192):
        piece = data[offset : offset + 4096]
        chunk = chunk_topic(DEVICE, name, offset, hashlib.sha256(piece).hexdigest())
        reception.handle([(chunk, parse(chunk).command, piece)], 100.0)
    now, answers = 100.0, list[FileResponse]()
    while not answers and now < 110.0:
        answers = reception.handle([(fin, parse(fin).command, b"")], now)
        now += 0.5
        if reception.deadline is not None and reception.deadline <= now:
            answers += reception.tick(now)
    assert [(each.reason_description, each.missing) for each in answers] == [("incomplete", ((4096, 8192),))]
    assert now <= 103.0


def test_bundle_is_complete_before_its_board_may_delete_it(
    shelf: Shelf, bundle_maker: Callable[..., Any], tmp_path: Path, completed: list[tuple[str, str]]
) -> None:
    """Its last blobs have come by another way, of which nobody has told the bundle."""
    made = bundle_maker()
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(0.0))
    for name, data in made.blobs.items():
        source = tmp_path / name
        source.write_bytes(data)
        shelf.store.keep_blob(name, shelf.blobs.put(name, source), Wall(0.0))
    assert send(Desk(shelf), made) == [Done("b")]
    row = shelf.store.bundle(DEVICE, "bundle-0001")
    assert row is not None and row.state == "complete" and completed == [(DEVICE, "bundle-0001")]


def test_two_devices_with_the_same_file_at_once_keep_apart(shelf: Shelf) -> None:
    """One of them sends other bytes under the name: the other's file is stored, whole, and the liar's is not."""
    data = Random(8).randbytes(8192)
    name = hashlib.sha256(data).hexdigest()
    honest, liar = Reception(DEVICE, name, shelf), Reception("cam-2", name, shelf)

    def say(to: Reception, topic: str, payload: bytes = b"") -> list[FileResponse]:
        return to.handle([(topic, parse(topic).command, payload)], 0.0)

    for each in (honest, liar):
        say(each, init_topic(each.device, name), encode(Init("x", len(data), name, {"kind": "blob"})))
    for offset in (0, 4096):
        piece = data[offset : offset + 4096]
        wrong = bytes(4096)
        for each, sent in ((liar, wrong), (honest, piece)):
            digest = hashlib.sha256(sent).hexdigest()
            (answer,) = say(each, chunk_topic(each.device, name, offset, digest), sent)
            assert answer.acked == ((0, offset + 4096),)
    (answer,) = say(liar, fin_topic("cam-2", name, len(data)))
    assert (answer.reason_description, answer.missing) == ("file_hash", ((0, len(data)),))
    (answer,) = say(honest, fin_topic(DEVICE, name, len(data)))
    assert answer.stored and shelf.blobs.get(name, len(data)) == data


def test_bytes_written_over_others_count_in_the_hash(shelf: Shelf) -> None:
    """Chunks of another size after a resend, out of order, one across others: what is on the disk is what is hashed."""
    data = Random(9).randbytes(20_000)
    name = hashlib.sha256(data).hexdigest()
    for order in (
        ((0, 8000), (12_000, 20_000), (8000, 12_000)),
        ((0, 8000), (6000, 20_000)),
        ((9000, 20_000), (0, 9000)),
    ):
        for start, stop in order:
            shelf.partials.write(DEVICE, name, start, data[start:stop])
        with shelf.partials.whole(DEVICE, name, len(data)) as path:
            assert path is not None and path.read_bytes() == data
        shelf.partials.discard(DEVICE, name)
    shelf.partials.write(DEVICE, name, 0, bytes(8000))
    shelf.partials.write(DEVICE, name, 6000, data[6000:])
    with shelf.partials.whole(DEVICE, name, len(data)) as path:
        assert path is None
    shelf.partials.discard(DEVICE, name)
