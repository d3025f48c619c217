"""What fails while the collector takes a file in: disk, bucket, or another ingester that is killed or wakes up late."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from typing import Any

import pytest

from tidegauge.clocks import wall
from tidegauge.collector import bundle_rows
from tidegauge.collector.reception import Reception
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.transfer_rows import Claimant
from tidegauge.link.commands import chunk_topic, fin_topic, init_topic
from tidegauge.link.sender import Done
from tidegauge.link.wire import FileResponse, Init, encode
from unit.collector.reception_desk import DEVICE, Desk, begin, chunk, send


def failing_once(monkeypatch: pytest.MonkeyPatch, shelf: Shelf, error: OSError) -> None:
    """The store takes no blob the next time, and all after that."""
    put, failures = type(shelf.blobs).put, [error]

    def fails_once(*given: Any, **more: Any) -> int:
        if failures:
            raise failures.pop()
        return put(*given, **more)

    monkeypatch.setattr(type(shelf.blobs), "put", fails_once)


def test_full_disk_postpones(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"abc")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(type(shelf.partials), "write", lambda *_: (_ for _ in ()).throw(full))
    answer = chunk(desk, file_id, 0, b"abc")
    assert answer.retry_after_ms > 0 and answer.acked == ()
    monkeypatch.undo()
    assert chunk(desk, file_id, 0, b"abc").acked == ((0, 3),)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_disk_that_was_full_in_the_last_step_holds_nobody_up(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As soon as there is room again, whichever ingester is asked next stores the file."""
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"abc")
    chunk(desk, file_id, 0, b"abc")
    failing_once(monkeypatch, shelf, OSError(number, "no room"))
    (answer,) = desk.handle(fin_topic(DEVICE, file_id, 3), b"")
    assert answer.retry_after_ms > 0 and not answer.stored
    assert begin(desk, b"abc")[1].acked == ((0, 3),), "it is not sent again"
    assert [each.stored for each in desk.handle(fin_topic(DEVICE, file_id, 3), b"")] == [True]


@pytest.mark.parametrize("place", ["postgresql+s3"], indirect=True)
def test_bucket_that_cannot_be_reached_costs_patience_and_no_byte(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(shelf)
    file_id, _ = begin(desk, b"abc")
    chunk(desk, file_id, 0, b"abc")

    def unreached(*_: object) -> None:
        raise OSError(errno.EIO, "the blob store failed: connection refused")

    for name in ("whole", "discard"):
        monkeypatch.setattr(type(shelf.partials), name, unreached)
    (answer,) = desk.handle(fin_topic(DEVICE, file_id, 3), b"")
    assert answer.retry_after_ms > 0 and not answer.stored
    monkeypatch.undo()
    assert begin(desk, b"abc")[1].acked == ((0, 3),)
    assert [each.stored for each in desk.handle(fin_topic(DEVICE, file_id, 3), b"")] == [True]


def beside(shelf: Shelf) -> Desk:
    """Another ingester of the same collector."""
    for name in (shelf.me.executor, "the-other"):
        shelf.store.beat(name, "host", "1")
    return Desk(dataclasses.replace(shelf, me=Claimant("the-other", shelf.me.dead_after)))


@pytest.mark.parametrize("place", ["postgresql+s3"], indirect=True)
def test_file_that_a_killed_ingester_was_checking_is_stored_by_another(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps silent while the first has just begun, says "not now" while that lives, and then takes over."""
    one, other = Desk(shelf), beside(shelf)
    file_id, _ = begin(one, b"abc")
    chunk(one, file_id, 0, b"abc")
    fin = fin_topic(DEVICE, file_id, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Reception, "_keep", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))  # as a kill: no clean-up
        with pytest.raises(KeyboardInterrupt):
            one.handle(fin, b"")
    assert other.handle(fin, b"") == []
    with shelf.store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE transfers SET verifying = verifying - 11")
    (answer,) = other.handle(fin, b"")
    assert answer.retry_after_ms == 15_000 and not answer.stored and answer.reason_code == 0
    assert b'postponed_total{reason="verifying"} 1.0' in shelf.metrics.render()
    with shelf.store._engine.begin() as connection:
        connection.exec_driver_sql("UPDATE executors SET beat = beat - 16 WHERE executor = 'the-ingester'")
    assert begin(other, b"abc")[1].acked == ((0, 3),)
    assert [each.stored for each in other.handle(fin, b"")] == [True]


@pytest.mark.parametrize("place", ["postgresql+s3"], indirect=True)
def test_ingester_that_wakes_up_after_another_has_taken_over_asks_for_nothing(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for dead while it read the file, it finds the parts gone: they are stored, and need no second sending."""
    one, other = Desk(shelf), beside(shelf)
    file_id, _ = begin(one, b"abcdef")
    for offset, data in ((0, b"abc"), (3, b"def")):
        chunk(one, file_id, offset, data)
    fin, list_parts, heard = fin_topic(DEVICE, file_id, 6), type(shelf.partials)._parts, list[FileResponse]()  # type: ignore[attr-defined]

    def slow(*given: Any) -> Any:
        found = list_parts(*given)
        monkeypatch.setattr(type(shelf.partials), "_parts", list_parts)
        with shelf.store._engine.begin() as connection:
            connection.exec_driver_sql("UPDATE executors SET beat = beat - 16 WHERE executor = 'the-ingester'")
        heard.extend(other.handle(fin, b""))
        return found

    monkeypatch.setattr(type(shelf.partials), "_parts", slow)
    assert one.handle(fin, b"") == []
    assert [each.stored for each in heard] == [True] and shelf.store.open_transfers() == []
    assert begin(one, b"abcdef")[1].stored and shelf.blobs.get(file_id, 6) == b"abcdef"


def test_kill_in_the_last_step_of_a_file_leaves_all_of_it_or_nothing(
    shelf: Shelf, bundle_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, completed: list[tuple[str, str]]
) -> None:
    """Or else a board would delete a bundle that waits for ever for what is here."""
    made, desk = bundle_maker(), Desk(shelf)
    find = bundle_rows.waiting_for
    for number in range(1 + len(made.blobs)):
        passed: set[str] = set()

        def killed(sha256: str, passed: set[str] = passed, more: int = min(number, 1)) -> Any:
            """One file more than before gets through."""
            if sha256 not in passed and len(passed) >= more:
                raise InterruptedError
            passed.add(sha256)
            return find(sha256)

        monkeypatch.setattr(bundle_rows, "waiting_for", killed)
        with pytest.raises(InterruptedError):
            send(desk, made)
        held, open_ones = shelf.store.held(), shelf.store.open_transfers()
        # The board asks ahead for the next file: of that one no byte is here.
        assert len([item for item in open_ones if item.coverage]) == 1
        assert not {item.file_id for item in open_ones} & held.keys()
        assert shelf.store.pulled(DEVICE, wall()) == sum(held[name] for name in made.blobs if name in held)
    monkeypatch.setattr(bundle_rows, "waiting_for", find)
    assert send(desk, made) == [Done("b")]
    row = shelf.store.bundle(DEVICE, "bundle-0001")
    assert row is not None and row.state == "complete" and completed == [(DEVICE, "bundle-0001")]


def test_what_the_disk_could_not_sync_is_asked_for_again(
    shelf: Shelf, bundle_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After EIO a second sync succeeds, with nothing on the disk: "stored" would be a lie."""
    made, desk = bundle_maker(), Desk(shelf)
    failing_once(monkeypatch, shelf, OSError(errno.EIO, "Input/output error"))
    data, digest = made.head, made.head_id
    init = encode(Init("manifest.json", len(data), digest))
    chunk, fin = chunk_topic(DEVICE, digest, 0, digest), fin_topic(DEVICE, digest, len(data))
    desk.handle(init_topic(DEVICE, digest), init)
    desk.handle(chunk, data)
    (answer,) = desk.handle(fin, b"")
    assert answer.retry_after_ms > 0 and not answer.stored
    again = any(each.stored for each in desk.handle(fin, b""))
    # A folder's bytes of before are not to be trusted; a bucket has told of each chunk that it is durable.
    assert again == shelf.partials.shared
    assert send(desk, made) == [Done("b")]
    assert shelf.blobs.get(digest, len(data)) == data


def test_a_sync_between_chunks_that_fails_does_not_end_the_collector(
    shelf: Shelf, bundle_maker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, failures = bundle_maker(), [OSError(errno.EIO, "Input/output error")]

    def sync(*_: object) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(type(shelf.partials), "sync", sync)
    assert send(Desk(shelf), made) == [], "the device is told to wait"
    assert not failures
    assert send(Desk(shelf), made) == [Done("b")]
