"""Pages, API and metrics through the real application."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from integration.collector_web import from_here
from needs import unless
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.manifest import Cause
from tidegauge.clocks import Wall
from tidegauge.collector import views, web
from tidegauge.collector.access import Access
from tidegauge.collector.blobs import hash_of
from tidegauge.collector.config import AccessConfig, ScrapeConfig
from tidegauge.collector.shelf import Shelf
from tidegauge.collector.site import Site
from tidegauge.collector.store import StoredReport
from tidegauge.link.wire import Status

BUNDLE = "bundles/cam-1/bundle-0001"


@pytest.fixture
def client(shelf: Shelf, tmp_path: Path) -> Iterator[TestClient[Any]]:
    (tmp_path / "work").mkdir(exist_ok=True)
    site = Site(
        base="/tide",
        store=shelf.store,
        blobs=shelf.blobs,
        work=tmp_path / "work",
        metrics=shelf.metrics,
        manifest_limit=1 << 20,
        connected=lambda: True,
        stands_back=lambda: "",
        scrape=ScrapeConfig("{device}.boards:9464", ("cam-*",)),
        access=Access(shelf.store, AccessConfig(), loopback=True),
    )
    with TestClient(from_here(web.build(site)), base_url="http://127.0.0.1:8420") as opened:
        yield opened


@pytest.fixture
def add(shelf: Shelf, tmp_path: Path, bundle_maker: Callable[..., Any]) -> Callable[..., Any]:
    def put(blobs: bool = True, **changes: Any) -> Any:
        made = bundle_maker(**changes)
        for name, data in {made.head_id: made.head, **(made.blobs if blobs else {})}.items():
            source = tmp_path / "incoming"
            source.write_bytes(data)
            shelf.store.add_blob(name, shelf.blobs.put(name, source), Wall(0.0))
        shelf.store.add_bundle(made.manifest, made.head_id, Wall(1_780_000_000.0))
        return made

    return put


def get(client: TestClient[Any], path: str) -> Any:
    return client.get(f"/tide/{path}")


def test_every_answer_has_a_policy_and_a_report_may_only_draw(
    client: TestClient[Any], add: Callable[..., Any], shelf: Shelf, tmp_path: Path
) -> None:
    add()
    for path, status in (
        ("", 200),
        (BUNDLE, 200),
        ("static/pages.css", 200),
        ("static/nothing.css", 404),
        ("metrics", 200),
        ("schema/openapi.json", 200),
        ("api/v1/health", 200),
        ("nothing", 404),
        ("reports/cam-1/bundle-0001/report.html", 404),
    ):
        answer = get(client, path)
        assert answer.status_code == status, path
        assert "default-src" in answer.headers["content-security-policy"], path
        assert ("unsafe-inline" in answer.headers["content-security-policy"]) == path.startswith("reports/"), path
    report = tmp_path / "report.html"
    report.write_text("<script>1</script>")
    kept = StoredReport("report.html", hash_of(report), shelf.blobs.put(hash_of(report), report))
    shelf.store.set_reports("cam-1", "bundle-0001", [kept])
    shelf.store.set_bundle("cam-1", "bundle-0001", "compared", report=True, exit_code=1, culprit="conv3")
    answer = get(client, "reports/cam-1/bundle-0001/report.html")
    assert answer.text == "<script>1</script>" and answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "sandbox allow-scripts" in policy and "allow-same-origin" not in policy
    assert "attachment" not in answer.headers.get("content-disposition", "")


def test_what_a_device_says_is_text_not_markup(client: TestClient[Any], add: Callable[..., Any], shelf: Shelf) -> None:
    evil = "<script>alert(1)</script>"
    add(cause=Cause(evil, "accelerator", (evil,), {evil: 1.0}, evil), options={evil: evil})
    shelf.store.set_status("cam-1", Status("online", 1, phase=evil, alarm=evil, model=evil), Wall(1.0))
    shelf.store.set_bundle("cam-1", "bundle-0001", "failed", reason=evil)
    for path in ("", BUNDLE):
        text = get(client, path).text
        assert evil not in text and "&lt;script&gt;" in text


def test_pages_have_no_inline_code_and_links_keep_the_base(client: TestClient[Any], add: Callable[..., Any]) -> None:
    add()
    for path in ("", BUNDLE, "nothing"):
        text = get(client, path).text
        assert "style=" not in text and "onclick=" not in text and "http://" not in text.replace("http-equiv", "")
        assert all(link.startswith("/tide/") for link in text.split('href="')[1:] if not link.startswith("#"))


def test_api_tells_bundles_devices_and_health(client: TestClient[Any], add: Callable[..., Any], shelf: Shelf) -> None:
    add(blobs=False)
    add(bundle="bundle-0002", device="cam-2")
    rows = get(client, "api/v1/bundles").json()
    assert {(row["device"], row["state"], row["blobs_held"]) for row in rows} == {
        ("cam-1", "waiting_blobs", 1),  # the input of cam-2 is the same blob
        ("cam-2", "complete", 2),
    }
    assert len(get(client, "api/v1/bundles?limit=1").json()) == 1
    assert get(client, "api/v1/bundles?limit=0").status_code == 400
    detail = get(client, "api/v1/bundles/cam-1/bundle-0001").json()
    assert len(detail["wanted"]) == 1 and detail["manifest"]["device"] == "cam-1"
    missing = get(client, "api/v1/bundles/cam-1/nothing")
    assert missing.status_code == 404 and "has sent no bundle" in missing.json()["detail"]
    shelf.store.set_status("cam-1", Status("online", 3, phase="monitoring"), Wall(7.0))
    assert get(client, "api/v1/devices").json()[0]["phase"] == "monitoring"
    health = get(client, "api/v1/health").json()
    assert health["status"] == "ok" and health["bundles"] == {"waiting_blobs": 1, "complete": 1}
    assert "/tide/api/v1/bundles" in get(client, "schema/openapi.json").json()["paths"]


def test_download_is_the_whole_bundle(client: TestClient[Any], add: Callable[..., Any], tmp_path: Path) -> None:
    made = add()
    answer = get(client, f"{BUNDLE}/download")
    assert answer.status_code == 200 and 'filename="bundle-0001.tidebundle"' in answer.headers["content-disposition"]
    (tmp_path / "b.tidebundle").write_bytes(answer.content)
    assert import_bundle(tmp_path / "b.tidebundle", tmp_path / "imported") == made.manifest
    assert list((tmp_path / "work").iterdir()) == []
    add(blobs=False, bundle="bundle-0009", logs=(), inputs=())
    assert get(client, "bundles/cam-1/bundle-0009/download").status_code == 200  # it names no blob


def test_incomplete_bundle_is_not_offered(client: TestClient[Any], add: Callable[..., Any]) -> None:
    add(blobs=False)
    answer = get(client, f"{BUNDLE}/download")
    assert answer.status_code == 409 and "0 of 2 blobs" in answer.text
    assert "/download" not in get(client, BUNDLE).text


@unless(shutil.which("promtool") is not None, "promtool is not installed")
def test_metrics_are_clean(client: TestClient[Any], add: Callable[..., Any], shelf: Shelf) -> None:
    add()
    shelf.store.set_status("cam-1", Status("online", 3, alarm="black"), Wall(7.0))
    shelf.metrics.compared("culprit", 3.0)
    text = get(client, "metrics").text
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert 'tidegauge_collector_device_last_seen_timestamp_seconds{device="cam-1"} 7.0' in text
    assert 'tidegauge_device_drift_alarm{cause="undecided",device="cam-1",model=""} 1.0' in text
    assert 'tidegauge_collector_bundles{state="complete"} 1.0' in text
    assert 'tidegauge_collector_comparisons_total{result="culprit"} 1.0' in text
    per_device = [line for line in text.splitlines() if 'device="cam-1"' in line]
    assert len(per_device) <= 20


def test_boards_that_can_be_scraped_are_listed(client: TestClient[Any], shelf: Shelf) -> None:
    for device in ("cam-1", "lab-1"):
        shelf.store.set_status(device, Status("online", 3), Wall(7.0))
    answer = get(client, "api/v1/sd")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == [{"targets": ["cam-1.boards:9464"], "labels": {"device": "cam-1"}}]


def test_numbers_and_times_for_people() -> None:
    assert views.number(None) == "–" and views.number(float("nan")) == "nan" and views.number(0.12345) == "0.123"
    assert [views.number(each) for each in (999.6, 72239.0, -1234567.0, 3e14)] == [
        "1,000",
        "72,239",
        "-1,234,567",
        "3e+14",
    ]
    assert views.utc(1e30) == "an impossible time" and views.iso(1e30) == ""
    assert views.ago(0.0, 59.4) == "59 s ago" and views.ago(0.0, 7300.0) == "2 h ago"
    assert views.ago(9.0, 0.0) == "0 s ago"
    assert views.size(1536) == "1.5 KiB" and views.size(3) == "3 bytes"


def test_findings_library_and_processes_are_told(
    client: TestClient[Any], add: Callable[..., Any], shelf: Shelf
) -> None:
    for device in ("cam-1", "cam-2"):
        add(device=device)
        shelf.store.set_bundle(
            device, "bundle-0001", "compared", exit_code=1, culprit="conv3", culprit_cause="gain", report=True
        )
    (one,) = get(client, "api/v1/findings").json()
    assert one["finding"]["devices"] == 2 and one["finding"]["layer"] == "conv3"
    detail = get(client, f"api/v1/findings/{one['id']}").json()
    assert sorted(board["device"] for board in detail["boards"]) == ["cam-1", "cam-2"]
    assert get(client, "api/v1/findings/nothing").status_code == 404
    assert get(client, "api/v1/library").json() == []
    shelf.store.beat("collector-1", "host", "2")
    assert get(client, "api/v1/executors").json()[0]["host"] == "host"


def test_a_mistake_of_the_program_is_in_its_log_and_not_in_the_answer(
    client: TestClient[Any], shelf: Shelf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("a secret detail")

    monkeypatch.setattr(type(shelf.store), "findings", broken)
    answer = get(client, "api/v1/findings")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert "default-src" in answer.headers["content-security-policy"]
    (record,) = [each for each in caplog.records if each.name == "tidegauge.collector.web"]
    assert record.exc_info is not None and "a secret detail" in str(record.exc_info[1])
