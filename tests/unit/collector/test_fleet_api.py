"""The reading API: devices, history in few points, alarms, bundles, blobs, and two bundles side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from litestar.testing import TestClient

from integration.collector_web import from_here
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Stamp, Wall
from tidegauge.collector import web
from tidegauge.collector.access import Access
from tidegauge.collector.config import AccessConfig, ScrapeConfig
from tidegauge.collector.fleet_rows import BundleFilter, DeviceFilter
from tidegauge.collector.history_points import merge_sums, merged
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.side_by_side import read_side, side_by_side
from tidegauge.collector.site import Site
from tidegauge.collector.store import Store, StoredReport
from tidegauge.link.wire import AlarmChange, Status
from tidegauge.spool.records import HistoryRecord, Sums, Tombstone

HOUR = 3600.0


def record(number: int, **changes: Any) -> HistoryRecord:
    end = 1_780_000_000.0 + number * HOUR
    made = HistoryRecord(
        id=f"h-{number}",
        session=1,
        number=number + 1,
        began=Stamp(end - HOUR, "boot", number * HOUR),
        ended=Stamp(end, "boot", (number + 1) * HOUR),
        model="enhancer",
        counts={"frames": 10},
        loss=Sums(count=2, sum=3.0, squares=5.0, least=1.0, most=2.0, buckets=(1, 2), edges=(1.5,)),
        evidence={"golden": (float(number), 8.0)},
        alarms=("golden",) if number == 1 else (),
    )
    return msgspec.structs.replace(made, **changes)


@pytest.fixture
def client(shelf: Shelf, tmp_path: Path) -> Iterator[TestClient[Any]]:
    (tmp_path / "work").mkdir(exist_ok=True)
    site = Site(
        base="",
        store=shelf.store,
        blobs=shelf.blobs,
        work=tmp_path / "work",
        metrics=None,
        manifest_limit=1 << 20,
        connected=lambda: True,
        stands_back=lambda: "",
        scrape=ScrapeConfig(),
        access=Access(shelf.store, AccessConfig(pictures="operator"), loopback=True),
    )
    with TestClient(from_here(web.build(site)), base_url="http://127.0.0.1:8420") as opened:
        yield opened


def online(store: Store, device: str, model: str, now: float, **more: Any) -> None:
    store.set_status(device, Status("online", 1, model=model, **more), Wall(now))


def test_devices_are_found_sorted_and_paged(store: Store) -> None:
    for number in range(5):
        online(store, f"cam-{number}", "even" if number % 2 == 0 else "odd_100%", 100.0 - number)
    alarm = AlarmChange("a-1", True, "golden", "accelerator", (), "It drifts.", 5.0, "boot", 5.0)
    store.set_alarm("cam-3", alarm, Wall(50.0))
    names = [d.device for d in store.find_devices(DeviceFilter(), "last_seen", False, 3, 1)]
    assert names == ["cam-3", "cam-2", "cam-1"]
    assert store.count_devices(DeviceFilter(model="even")) == 3
    assert [d.device for d in store.find_devices(DeviceFilter(search="CAM-4"))] == ["cam-4"]
    assert store.count_devices(DeviceFilter(search="_100%")) == 2 and store.count_devices(DeviceFilter(search="%")) == 2
    assert [d.device for d in store.find_devices(DeviceFilter(alarmed=True))] == ["cam-3"]
    assert store.count_devices(DeviceFilter(alarmed=False)) == 4
    assert store.find_devices(DeviceFilter(), "alarms", True, 1)[0].device == "cam-3"
    found = store.device("cam-3")
    assert found is not None and found.alarms == 1 and store.device("nothing") is None
    (only,) = store.alarms("cam-3", active=True)
    assert only.message == "It drifts." and store.alarms(active=False) == []


def test_devices_are_sorted_by_what_they_have_told_of_their_drift(store: Store, client: TestClient[Any]) -> None:
    """Past its limit a board goes on climbing; one that has told nothing comes last, whichever way it is sorted."""
    for name, evidence, loss in (("cam-1", 6.0, 0.2), ("cam-2", 24.0, 0.01), ("cam-3", 36.0, 0.4)):
        told = {"loss": loss, "evidence.loss": evidence, "limit.loss": 12.0, "evidence.nmse": 1.0, "limit.nmse": 12.0}
        online(store, name, "enhancer", 1.0, detail={**told, "observations.loss": 1000.0})
    online(store, "cam-0", "enhancer", 1.0)

    def names(order: str, descending: bool) -> list[str]:
        query = {"order": order, "descending": str(descending).lower()}
        return [each["device"][-1] for each in client.get("/api/v1/fleet", params=query).json()["items"]]

    assert names("drift", True) == names("evidence", True) == ["3", "2", "1", "0"]
    assert names("drift", False) == ["1", "2", "3", "0"]
    assert names("loss", True) == ["3", "1", "2", "0"] and names("loss", False) == ["2", "1", "3", "0"]
    assert [each.device for each in store.standing_out()] == ["cam-3", "cam-2"]
    page = client.get("/?order=evidence").text
    assert page.count(">stands out</span>") == 2 and "<b>2</b> stand out" in page
    online(store, "cam-3", "enhancer", 2.0, detail={"loss": 0.1})  # it has told the newest, and nothing else
    assert names("drift", True) == ["2", "1", "0", "3"]


def test_acceptance_is_told_by_release_of_boards_that_passed_too(
    store: Store, client: TestClient[Any], bundle_maker: Callable[..., Any]
) -> None:
    """A board that passed sends no bundle: it is counted by its own word. One that sends bundles is in the same set."""
    net = "ab" * 32  # of the made bundles
    for number, (sdk, acceptance) in enumerate(
        (("11.1", "accepted"), ("11.1", "accepted"), ("11.1", "failed"), ("12.0", "running"), ("12.0", "accepted"))
    ):
        online(store, f"cam-{number}", "enhancer", 5.0, sdk=sdk, artifacts=net, acceptance=acceptance)
    online(store, "cam-9", "enhancer", 6.0)  # of an older version: it tells nothing of it
    cause = Cause("acceptance", "accelerator", (), {}, "No acceptance.")
    made = bundle_maker(bundle="b", device="cam-2", cause=cause)
    store.add_bundle(made.manifest, made.head_id, Wall(7.0))
    sent, told = store.model_sets()
    assert (sent.key, sent.accepted, sent.failed, sent.accepting) == (("enhancer", net, "11.1"), 2, 1, 0)
    assert (sent.bundles, sent.boards, sent.refused, sent.last) == (1, 1, 1, 7.0)
    assert (told.key, told.accepted, told.failed, told.accepting) == (("enhancer", net, "12.0"), 1, 0, 1)
    assert (told.bundles, told.boards, told.last) == (0, 0, 0.0)
    page = client.get("/models").text
    assert "2 of 3" in page and "1 of 2" in page and "1 under way" in page and "1 by bundles, ever" in page
    assert client.get("/api/v1/devices/cam-2").json()["acceptance"] == "failed"
    store.set_status("cam-2", Status("lost", 1), Wall(8.0))  # a will knows nothing of it
    assert store.model_sets()[0].failed == 1


def test_bundles_are_found_by_what_they_are(store: Store, bundle_maker: Callable[..., Any]) -> None:
    for number, device in enumerate(("cam-1", "cam-1", "cam-2")):
        made = bundle_maker(device, f"bundle-000{number}")
        store.add_bundle(made.manifest, made.head_id, Wall(float(number)))
    store.set_bundle("cam-2", "bundle-0002", "compared", exit_code=1)
    assert [b.bundle for b in store.find_bundles(BundleFilter(device="cam-1"))] == ["bundle-0001", "bundle-0000"]
    assert [b.device for b in store.find_bundles(BundleFilter(exit_code=1))] == ["cam-2"]
    assert store.count_bundles(BundleFilter(state="waiting_blobs")) == 2
    assert [b.bundle for b in store.find_bundles(BundleFilter(), 1, 1)] == ["bundle-0001"]


def test_history_comes_in_as_few_points_as_asked(client: TestClient[Any], shelf: Shelf) -> None:
    online(shelf.store, "cam-1", "enhancer", 1.0)
    gone = Tombstone("bundle-0009", "budget", Stamp(1_780_000_000.0, "boot", 1.0))
    shelf.store.add_records("cam-1", [*(record(number) for number in range(10)), gone], Wall(7.0))
    begin = 1_780_000_000.0
    query = {"since": begin, "until": begin + 10 * HOUR, "points": 5}
    points = client.get("/api/v1/devices/cam-1/history", params=query).json()
    assert [point["hours"] for point in points] == [2, 2, 2, 2, 2]
    assert points[0]["counts"] == {"frames": 20} and points[0]["loss"]["sum"] == 6.0
    assert points[0]["evidence"]["golden"] == {"last": 1.0, "limit": 8.0, "peak": 0.125}
    assert points[0]["alarms"] == ["golden"] and points[0]["ended"] == begin + HOUR
    one = client.get("/api/v1/devices/cam-1/history", params={**query, "until": begin + 1.0}).json()
    assert len(one) == 1 and one[0]["hours"] == 1
    assert client.get("/api/v1/devices/cam-1/history", params={"since": 9, "until": 9}).status_code == 400
    assert client.get("/api/v1/devices/cam-1/history", params={"since": "nan", "until": 9}).status_code == 400
    assert client.get("/api/v1/devices/cam-9/history").status_code == 404
    assert [row["record"] for row in client.get("/api/v1/devices/cam-1/given-up").json()] == ["bundle-0009"]


def test_blob_of_a_bundle_is_given_and_no_other(
    client: TestClient[Any], shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]
) -> None:
    made, other = bundle_maker(), bundle_maker(bundle="bundle-0002")
    for name, data in {made.head_id: made.head, **made.blobs, **other.blobs}.items():
        (tmp_path / "incoming").write_bytes(data)
        shelf.store.add_blob(name, shelf.blobs.put(name, tmp_path / "incoming"), Wall(0.0))
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(1.0))
    place = "/api/v1/bundles/cam-1/bundle-0001"
    name = made.manifest.logs[0].blob.sha256
    answer = client.get(f"{place}/blobs/{name}")
    assert answer.content == made.blobs[name] and answer.headers["content-disposition"].startswith("attachment")
    foreign = other.manifest.logs[0].blob.sha256
    for wrong in (foreign, made.head_id, "0" * 64, "..%2f..%2fcollector.sqlite", "x"):
        assert client.get(f"{place}/blobs/{wrong}").status_code == 404
    assert client.get(f"{place}/manifest").content == made.head
    assert hashlib.sha256(client.get(f"{place}/archive").content).digest() != b""
    token = shelf.store.new_token("guest", "viewer", Wall(1.0))
    seen = {"authorization": f"Bearer {token}"}
    assert client.get(f"{place}/manifest", headers=seen).status_code == 200
    for path in (f"{place}/blobs/{name}", f"{place}/archive", "/reports/cam-1/bundle-0001/report.html"):
        assert client.get(path, headers=seen).status_code == 403, "pictures are for operators here"


def test_pin_is_an_operators_deed_and_is_written_down(
    client: TestClient[Any], shelf: Shelf, bundle_maker: Callable[..., Any]
) -> None:
    made = bundle_maker()
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(1.0))
    pin = "/api/v1/bundles/cam-1/bundle-0001/pin"
    csrf = {"x-csrf-token": client.get("/api/v1/session").json()["csrf_token"]}
    assert client.post(pin, json={"pinned": True}).status_code == 403
    assert client.post(pin, json={"pinned": True}, headers=csrf).json()["pinned"] is True
    assert client.post(pin, json={"pinned": "no"}, headers=csrf).status_code == 400
    assert client.post(pin.replace("0001", "0009"), json={"pinned": True}, headers=csrf).status_code == 404
    viewer = {"authorization": f"Bearer {shelf.store.new_token('guest', 'viewer', Wall(1.0))}"}
    assert client.post(pin, json={"pinned": False}, headers=viewer).status_code == 403
    (deed,) = client.get("/api/v1/audit").json()
    assert (deed["who"], deed["action"], deed["device"]) == ("local", "pin", "cam-1")
    assert deed["detail"] == {"bundle": "bundle-0001"}


def test_without_a_key_no_board_is_commanded(client: TestClient[Any], shelf: Shelf) -> None:
    online(shelf.store, "cam-1", "enhancer", 1.0)
    csrf = {"x-csrf-token": client.get("/api/v1/session").json()["csrf_token"]}
    answer = client.post("/api/v1/devices/cam-1/commands", json={"type": "ClearAlarms"}, headers=csrf)
    assert answer.status_code == 409 and "commands.key" in answer.json()["detail"]
    assert client.get("/api/v1/commands").json() == [] == shelf.store.deeds()


def answer_of(verdict: str, sdk: str, local: float) -> bytes:
    layer = {"name": "conv1", "tensor": "c1", "verdict": verdict, "local": {"sqnr_db": local}, "excess": 2.0}
    made = {
        "sentence": f"It is {verdict}.",
        "subject": {"model": "m", "versions": {"sdk": sdk}},
        "coverage": {"share": 1.0},
        "layers": [layer, {"name": "only"}],
        "outputs": [{"name": "out", "metrics": {"sqnr_db": local}}],
    }
    return msgspec.json.encode(made)


def test_two_bundles_side_by_side(
    client: TestClient[Any], shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]
) -> None:
    for name, data in (
        ("bundle-0001", answer_of("healthy", "11.0", 40.0)),
        ("bundle-0002", answer_of("faulty", "11.1", 3.0)),
    ):
        made = bundle_maker(bundle=name)
        shelf.store.add_bundle(made.manifest, made.head_id, Wall(1.0))
        (tmp_path / "answer").write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        size = shelf.blobs.put(sha256, tmp_path / "answer")
        shelf.store.set_reports("cam-1", name, [StoredReport("comparison.json", sha256, size)])
        shelf.store.set_bundle("cam-1", name, "compared", report=True)
    both = client.get("/api/v1/bundles/cam-1/bundle-0001/against/cam-1/bundle-0002").json()
    assert both["differing"] == [{"what": "versions", "name": "sdk", "one": "11.0", "other": "11.1"}]
    first, second = both["layers"]
    assert (first["layer"], first["changed"], first["one_local_db"], first["other_local_db"]) == ("c1", True, 40.0, 3.0)
    assert second["layer"] == "only" and not second["changed"]
    assert both["outputs"][0]["other_cumulative_db"] == 3.0
    same = side_by_side(read_side(answer_of("x", "1", 1.0)), read_side(answer_of("x", "1", 1.0)))
    assert not same.differing and not any(layer.changed for layer in same.layers)
    assert client.get("/api/v1/bundles/cam-1/bundle-0001/against/cam-1/nothing").status_code == 404


@given(
    numbers=st.lists(st.integers(0, 400), unique=True, max_size=40).map(sorted),
    points=st.integers(1, 60),
    begin=st.integers(-5, 300),
    length=st.integers(1, 500),
)
@settings(max_examples=100, deadline=None)
def test_merging_loses_and_invents_nothing(numbers: list[int], points: int, begin: int, length: int) -> None:
    found = [record(number) for number in numbers]
    since = 1_780_000_000.0 + begin * HOUR
    out = merged(found, since, since + length * HOUR, points)
    assert len(out) <= points
    assert sum(point.hours for point in out) == len(found)
    assert sum(point.counts["frames"] for point in out) == 10 * len(found)
    assert sum(point.loss.sum for point in out) == 3.0 * len(found)
    assert [point.ended for point in out] == sorted(point.ended for point in out)
    if points == 1 and found:
        assert out[0].evidence["golden"].peak == max(numbers) / 8.0


def test_sums_with_other_buckets_keep_what_can_be_added() -> None:
    one = Sums(count=1, sum=1.0, squares=1.0, least=1.0, most=1.0, buckets=(1, 0), edges=(2.0,))
    other = Sums(count=1, sum=3.0, squares=9.0, least=3.0, most=3.0, buckets=(1, 0, 0), edges=(4.0, 5.0))
    both = merge_sums(one, other)
    assert (both.count, both.sum, both.least, both.most) == (2, 4.0, 1.0, 3.0) and both.buckets == both.edges == ()
    assert merge_sums(Sums(), one) == one == merge_sums(one, Sums())
