"""What pages say, and how they stay up to date; the pages themselves are looked at in a browser by `tests/browser`."""

from __future__ import annotations

import asyncio
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from litestar.exceptions import NotFoundException
from litestar.testing import TestClient

from integration.collector_web import from_here
from tidegauge.bundles.manifest import Blob, StoredTensor
from tidegauge.clocks import Stamp, Wall
from tidegauge.collector import tensor_pictures, views_fleet, web
from tidegauge.collector.access import Access
from tidegauge.collector.config import AccessConfig, ScrapeConfig
from tidegauge.collector.fleet_rows import Alarm
from tidegauge.collector.history_points import merged
from tidegauge.collector.pages.live import Feeds
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.site import Site
from tidegauge.collector.tables import Device
from tidegauge.collector.views_timeline import timeline
from tidegauge.link.wire import Status
from tidegauge.profile import Output, Preprocess, Profile
from tidegauge.spool.records import HistoryRecord, Sums
from tidegauge.tensors import TensorSpec


@pytest.fixture
def client(shelf: Shelf, tmp_path: Path) -> Iterator[TestClient[Any]]:
    (tmp_path / "work").mkdir(exist_ok=True)
    site = Site(
        base="/tide",
        store=shelf.store,
        blobs=shelf.blobs,
        work=tmp_path / "work",
        metrics=None,
        manifest_limit=1 << 20,
        connected=lambda: False,
        stands_back=lambda: "",
        scrape=ScrapeConfig(),
        access=Access(shelf.store, AccessConfig(), loopback=True),
    )
    with TestClient(from_here(web.build(site)), base_url="http://127.0.0.1:8420") as opened:
        yield opened


def device(**detail: float) -> Device:
    return Device("cam", 1, "online", "1", False, "m", "monitoring", 1.0, "", detail, 0.0)


def test_fleet_is_paged_filtered_and_sorted_by_the_database(client: TestClient[Any], shelf: Shelf) -> None:
    for number in range(60):
        state = "lost" if number == 3 else "online"
        shelf.store.set_status(f"cam-{number:02d}", Status("online", 1, model="m%"), Wall(float(number)))
        if state == "lost":
            shelf.store.set_status(f"cam-{number:02d}", Status("lost", 1), Wall(99.0))

    def listed(query: str) -> list[str]:
        answer = client.get(f"/tide/{query}")
        assert answer.status_code == 200
        return re.findall(r'href="/tide/devices/(cam-\d+)"', answer.text)

    assert listed("") == [f"cam-{number:02d}" for number in range(50)]
    assert listed("?page=2") == listed("?page=99") == [f"cam-{number:02d}" for number in range(50, 60)]
    assert listed("?order=last_seen&descending=true")[0] == "cam-59"
    assert listed("?state=lost") == ["cam-03"] and listed("?search=CAM-1") == [f"cam-1{n}" for n in range(10)]
    assert listed("?search=_") == listed("?alarmed=true") == []
    assert client.get("/tide/?page=0").status_code == client.get("/tide/?order=shape").status_code == 400


def test_every_page_says_what_to_do_when_there_is_nothing(client: TestClient[Any]) -> None:
    for path, words in (
        ("", "No device has been heard yet"),
        ("bundles", "No bundle yet"),
        ("findings", "No finding"),
        ("models", "tidegauge model add"),
        ("upload", "No file was sent yet"),
    ):
        text = client.get(f"/tide/{path}").text
        assert words in text and 'class="empty"' in text, path
    assert "broker is not connected" in client.get("/tide/").text
    for path in ("devices/cam-1", "findings/no", "runs/no", "bundles/cam-1/no", "live/devices/cam-1/events"):
        assert client.get(f"/tide/{path}").status_code == 404, path


def test_plotly_comes_from_here_under_an_address_that_is_kept(client: TestClient[Any], shelf: Shelf) -> None:
    shelf.store.set_status("cam-1", Status("online", 1), Wall(1.0))
    page = client.get("/tide/devices/cam-1").text
    (path,) = re.findall(r'src="(/tide/assets/[0-9a-f]{12}/plotly.min.js)"', page)
    answer = client.get(path)
    assert "immutable" in answer.headers["cache-control"] and b"plotly.js v" in answer.content[:200]
    assert answer.headers["content-encoding"] == "gzip"
    plain = client.get(path, headers={"accept-encoding": "identity"})
    assert plain.content == answer.content and "content-encoding" not in plain.headers
    assert client.get("/tide/assets/000000000000/plotly.min.js").status_code == 404


def test_pictures_of_what_is_here_and_of_nothing_else(
    client: TestClient[Any], shelf: Shelf, bundle_maker: Callable[..., Any], tmp_path: Path
) -> None:
    made = bundle_maker()
    for name, data in {made.head_id: made.head}.items():
        (tmp_path / "incoming").write_bytes(data)
        shelf.store.add_blob(name, shelf.blobs.put(name, tmp_path / "incoming"), Wall(0.0))
    shelf.store.add_bundle(made.manifest, made.head_id, Wall(1.0))
    place = f"/tide/bundles/{made.manifest.device}/{made.manifest.bundle_id}/pictures"
    assert client.get(f"{place}/input").status_code == client.get(f"{place}/shape").status_code == 404
    for name, data in made.blobs.items():
        (tmp_path / "incoming").write_bytes(data)
        shelf.store.add_blob(name, shelf.blobs.put(name, tmp_path / "incoming"), Wall(0.0))
    answer = client.get(f"{place}/input")
    assert answer.status_code == 200 and answer.content.startswith(b"\x89PNG")


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    """Of an 8-bit RGB PNG without filters."""
    width, height = struct.unpack(">II", png[16:24])
    start = png.index(b"IDAT")
    (length,) = struct.unpack(">I", png[start - 4 : start])
    rows = np.frombuffer(zlib.decompress(png[start + 4 : start + 4 + length]), np.uint8).reshape(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3)


def test_tensors_are_drawn_as_what_they_mean(bundle_maker: Callable[..., Any]) -> None:
    spec, blob = TensorSpec("enhanced", (1, 2, 2, 3), "float32"), Blob("a" * 64, 48, 48, "raw")
    given = TensorSpec("input", (1, 3, 2, 2), "float32")
    profile = Profile(
        "m",
        "onnx",
        "m.onnx",
        "a",
        Preprocess(2, 2, scale=(1 / 255,) * 3, channel_order="BGR"),
        Output("enhanced", "image", 1 / 255, layout="NHWC"),
    )
    manifest = msgspec.structs.replace(
        bundle_maker().manifest,
        profile=profile,
        inputs=(StoredTensor(given, blob),),
        device_outputs=(StoredTensor(spec, blob),),
        reference_outputs=(StoredTensor(spec, blob),),
    )
    drawn = {each.role: each for each in tensor_pictures.drawable(manifest)}
    assert list(drawn) == ["input", "device", "reference", "difference"]
    blue = np.zeros((1, 3, 2, 2), "<f4")
    blue[0, 0] = 1.0
    assert (pixels(tensor_pictures.draw(manifest, drawn["input"], [blue.tobytes()])) == (0, 0, 255)).all()
    one, other = np.full((1, 2, 2, 3), 0.5, "<f4"), np.full((1, 2, 2, 3), 0.5, "<f4")
    one[0, 0, 0, 0], one[0, 0, 1, 1], one[0, 1, 0, 2] = 1.5, np.nan, 0.0
    device_run = pixels(tensor_pictures.draw(manifest, drawn["device"], [one.tobytes()]))
    assert device_run[0, 0].tolist() == [255, 128, 128] and device_run[0, 1].tolist() == [255, 0, 200]
    both = pixels(tensor_pictures.draw(manifest, drawn["difference"], [one.tobytes(), other.tobytes()]))
    assert both[0, 0].tolist() == [213, 94, 0] and both[0, 1].tolist() == [255, 0, 200]
    assert both[1, 1].tolist() == [255, 255, 255] and both[1, 0, 2] > both[1, 0, 0]  # too low is blue
    with pytest.raises(ValueError, match="reshape"):
        tensor_pictures.draw(manifest, drawn["device"], [b"1234"])


def test_drift_is_the_share_of_the_limit_and_what_was_not_told_is_none() -> None:
    found = views_fleet.drifts(device(**{"evidence.loss": 6.0, "limit.loss": 12.0, "evidence.nmse": 30.0}))
    assert [(each.detector, each.share, each.tone) for each in found] == [("loss", 0.5, "warn")]
    far = views_fleet.drifts(
        device(**{"evidence.a": 20.0, "limit.a": 10.0, "evidence.b": float("nan"), "limit.b": 1.0})
    )
    assert [(each.share, each.tone) for each in far] == [(1.0, "bad")]
    assert views_fleet.loss(device()) is None and views_fleet.spool(device(spool=0.0)) == 0.0
    words = [
        views_fleet.camera_badge(each).text for each in (device(), device(camera_problem=0), device(camera_problem=1))
    ]
    assert words == ["not told", "fine", "problem"]


def test_paging_and_queries() -> None:
    assert views_fleet.paging(0, 5, 50) == views_fleet.Paging(1, 1, 0, 0, 0)
    assert views_fleet.paging(101, 9, 50) == views_fleet.Paging(3, 3, 101, 101, 101)
    assert views_fleet.query({"search": "a&b", "page": 3}, page="") == "?search=a%26b"
    assert views_fleet.query({}, page="") == ""


def hour(number: int, boot: str, program: str, loss: float | None) -> HistoryRecord:
    sums = Sums() if loss is None else Sums(2, 2 * loss, 0.0, loss / 2, loss * 2)
    began, ended = Stamp(number * 3600.0, boot, 0.0), Stamp((number + 1) * 3600.0, boot, 0.0)
    evidence = {"loss": (5.0, 10.0)}
    return HistoryRecord(f"h{number}", 1, number, began, ended, "m", "a", program, loss=sums, evidence=evidence)


def test_timeline_has_gaps_where_nothing_was_measured_and_marks_what_changed() -> None:
    hours = [hour(0, "a", "1", 0.1), hour(1, "b", "1", None), hour(2, "b", "2", 0.3)]
    alarm = Alarm("cam", "1", True, "loss", "accelerator", (), "It drifts.", 5000.0, 0.0)
    late = msgspec.structs.replace(alarm, wall=1e9)
    drawn = timeline(merged(hours, 0.0, 20000.0, 100), [alarm, late], [], 0.0, 20000.0)
    assert drawn.loss.mean == [0.1, None, 0.3] and drawn.loss.most == [0.2, None, 0.6]
    assert [curve.share for curve in drawn.evidence] == [[0.5, 0.5, 0.5]]
    assert [(mark.kind, mark.at) for mark in drawn.marks] == [
        ("reboot", 3600.0),
        ("alarm", 5000.0),
        ("version", 7200.0),
    ]


def test_a_live_page_tells_changes_once_for_all_who_look_and_ends_when_told() -> None:
    async def use() -> None:
        feeds, looks, said = Feeds(most=2), [0], ["one"]

        def look() -> str:
            looks[0] += 1
            return said[0]

        first, second = feeds.versions("page", look, "one"), feeds.versions("page", look, "one")
        for stream in (first, second):
            assert b"event: version\ndata: one" in await anext(stream)
        assert feeds.full()
        said[0] = "two"
        for stream in (first, second):
            assert await anext(stream) == b"event: version\ndata: two\n\n"
        count = looks[0]
        assert 1 <= count <= 3  # one look for both
        await second.aclose()
        assert not feeds.full()
        feeds.close()
        assert [event async for event in first if b"data" in event] == []
        assert feeds.full()

    asyncio.run(asyncio.wait_for(use(), 60))


def test_a_live_page_that_is_gone_ends() -> None:
    async def use() -> None:
        def gone() -> str:
            raise NotFoundException("it was deleted")

        feeds = Feeds()
        events = [event async for event in feeds.versions("page", gone, "one")]
        assert events[0].endswith(b"data: one\n\n") and b"data" not in b"".join(events[1:])

    asyncio.run(asyncio.wait_for(use(), 60))
