"""Tokens, audit log, runs, uploads and commands in both databases."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from tidegauge.clocks import Wall
from tidegauge.collector.access_rows import Deed
from tidegauge.collector.blobs import BlobStore
from tidegauge.collector.bundle_rows import StoredReport
from tidegauge.collector.relay import as_of
from tidegauge.collector.request_rows import Run, SentCommand, Upload
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.store import Store
from tidegauge.errors import TidegaugeError

DAY = 86400.0
T = 1_780_000_000.0


def test_tokens_sessions_and_secret_are_the_same_for_all_processes(store: Store) -> None:
    token = store.new_token("ann", "operator", Wall(T + 100.0), days=1.0)
    found = store.token(token, Wall(T + 101.0))
    assert found is not None and (found.name, found.role) == ("ann", "operator")
    assert store.token(token + "x", Wall(T + 101.0)) is None and store.token(token, Wall(T + 100.0 + DAY)) is None
    with pytest.raises(TidegaugeError, match="already"):
        store.new_token("ann", "viewer", Wall(T + 100.0))
    session = store.open_session(found, Wall(T + 101.0), 60.0)
    assert store.session(session, Wall(T + 160.0)) == msgspec.structs.replace(found, used=T + 101.0)
    assert store.session(session, Wall(T + 162.0)) is None and store.session("", Wall(T + 101.0)) is None
    assert store.revoke_token("ann") and store.session(session, Wall(T + 102.0)) is None
    assert store.secret("csrf") == store.secret("csrf") != store.secret("other")


def test_audit_log_is_told_newest_first_and_by_device(store: Store) -> None:
    for number, device in enumerate(("cam-1", "", "cam-1")):
        store.add_deed(Deed(0, float(number), "ann", "token", "192.0.2.1", "pin", device, {"n": number}))
    assert [deed.detail["n"] for deed in store.deeds()] == [2, 1, 0]
    newest = store.deeds(1, "cam-1")[0]
    assert [deed.detail["n"] for deed in store.deeds(10, "cam-1", newest.number)] == [0]


def put(store: Store, blobs: BlobStore, folder: Path, data: bytes) -> str:
    (folder / "file").write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    store.keep_blob(sha256, blobs.put(sha256, folder / "file"), Wall(0.0))
    return sha256


def test_what_a_run_needs_and_wrote_is_kept_until_it_is_deleted(shelf: Shelf, tmp_path: Path) -> None:
    store, blobs = shelf.store, shelf.blobs
    source, report, unused = (put(store, blobs, tmp_path, name) for name in (b"source", b"report", b"unused"))
    run = Run("r1", "traces", "a.zip", "", "", "ann", 5.0, {"threshold": 3.0}, source, "")
    store.add_run(run)
    assert store.open_runs() == ["r1"] and store.run("r1") == run
    assert (store.begin_run("r1"), store.begin_run("r1"), store.begin_run("nothing")) == (1, 2, 0)
    store.finish_run("r1", "done", [StoredReport("report.html", report, 6)], exit_code=1, sentence="It drifts.")
    done = store.run("r1")
    assert done is not None and (done.state, done.exit_code, done.sentence) == ("done", 1, "It drifts.")
    assert store.open_runs() == [] and store.runs(10, 0, "cam-1") == []
    assert store.condemn(Wall(1.0), Wall(2.0)) == 1 and store.condemned() == {unused}
    file = store.run_file("r1", "report.html")
    assert file is not None and file.sha256 == report
    assert store.delete_run("r1") and not store.delete_run("r1")
    store.finish_run("r1", "done", [StoredReport("report.html", report, 6)])
    assert store.run_file("r1", "report.html") is None, "it was deleted while it ran"
    assert store.condemn(Wall(1.0), Wall(2.0)) == 2


def test_upload_that_a_process_left_has_failed(store: Store) -> None:
    old = Upload("u0", "bundle", "a.tidebundle", 0, "ann", "one", 0.0, 0.0)
    for upload in (
        old,
        *(Upload(f"u-{who}", "model", "m.onnx", 0, "ann", who, 91 * DAY, 91 * DAY) for who in ("one", "two")),
    ):
        store.add_upload(upload)
    assert store.upload("u0") is None, "of long ago"
    store.set_upload("u-two", Wall(6.0), state="done", result={"model": "ab"})
    assert store.end_uploads("one", Wall(7.0), "stopped") == 1 and store.end_uploads("two", Wall(7.0), "stopped") == 0
    assert {each.upload: each.state for each in store.uploads()} == {"u-one": "failed", "u-two": "done"}


def test_answer_that_is_not_surely_the_devices_changes_none_that_is(store: Store) -> None:
    sent = SentCommand("c1", "cam-1", "d1", "ann", {"type": "ClearAlarms"}, 0.0, 60.0, "sent")
    store.add_command(sent)
    assert not store.note_answer("cam-2", "d1", True, Wall(1.0), state="done")
    assert store.note_answer("cam-1", "d1", False, Wall(1.0), state="running", step="one")
    assert store.note_answer("cam-1", "d1", True, Wall(2.0), state="running", step="two")
    assert not store.note_answer("cam-1", "d1", False, Wall(3.0), state="done")
    assert store.note_answer("cam-1", "d1", True, Wall(4.0), state="done", sentence="so it is")
    assert not store.note_answer("cam-1", "d1", True, Wall(5.0), state="failed")
    (found,) = store.sent_commands("cam-1")
    assert (found.state, found.step, found.sentence, found.verified) == ("done", "two", "so it is", True)
    late = as_of(sent, Wall(61.0))
    assert (late.state, late.reason) == ("failed", "expired") and as_of(sent, Wall(60.0)) == sent
    assert as_of(found, Wall(99.0)) == found
