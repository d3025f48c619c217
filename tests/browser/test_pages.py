"""Every page and every button in a real Chromium, on a running collector that a small fleet has spoken to.

One test, since starting broker, collector and comparisons takes longer than all that is looked at.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from playwright.sync_api import Browser, BrowserContext, JSHandle, Page, expect

from browser.chromium import MARKS, PATIENCE, chromium, violations
from browser.small_fleet import BOARDS, CAUSE, FAULTY, LAYER, SmallFleet, fill, new_lab
from integration.collector_peer import Process, mosquitto, publish
from tidegauge import signing
from tidegauge.cli.collector import command
from tidegauge.collector.access import COOKIE
from tidegauge.link.wire import Status, encode, topic

pytestmark = [*MARKS, pytest.mark.timeout(600)]

#: Screenshots are kept here for a person to look at.
SHOTS = Path(os.environ.get("TIDEGAUGE_SCREENSHOTS", "build/screenshots"))
BUNDLE = "/bundles/cam-001/cam-001-bundle-1"
OTHER = "cam-003/cam-003-bundle-1"

LOOKS = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "has_touch": True},
}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[SmallFleet]:
    for name in ("lab", "work"):
        (tmp_path / name).mkdir()
    lab = new_lab(tmp_path / "lab")
    signing.create(tmp_path / "operator.key")
    with mosquitto(tmp_path) as port:
        more = f'compile_library = "{tmp_path}/lab"\n[commands]\nkey = "{tmp_path}/operator.key"\n'
        collector = Process(tmp_path, port, more)
        collector.start()
        try:
            yield fill(collector, port, lab, tmp_path / "work")
        finally:
            collector.kill()


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


class Watched:
    """A browser's context whose pages must not complain. `problems`: what they said on the console."""

    def __init__(self, browser: Browser, url: str, look: str) -> None:
        self.url, self.look, self.problems = url, look, list[str]()
        self.context: BrowserContext = browser.new_context(timezone_id="Asia/Kolkata", locale="en-GB", **LOOKS[look])
        self.context.set_default_timeout(PATIENCE)

    def open(self, path: str) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self._heard(path, message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"{path}: {error}"))
        answer = page.goto(self.url + path)
        assert answer is not None and answer.status == 200, path
        return page

    def _heard(self, path: str, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.problems.append(f"{path}: {text}")


def test_every_page_and_every_button(fleet: SmallFleet, browser: Browser, tmp_path: Path) -> None:
    finding = fleet.collector.get("api/v1/findings")[0]["id"]
    paths = {
        "fleet": "/",
        "device": "/devices/cam-001",
        "finding": f"/findings/{finding}",
        "findings": "/findings",
        "bundle": BUNDLE,
        "bundles": "/bundles",
        "against": f"{BUNDLE}/against/{OTHER}",
        "models": "/models",
        "upload": "/upload",
        "device-without-history": "/devices/cam-010",
        "login": "/login",
    }
    for look in LOOKS:
        watched = Watched(browser, fleet.url, look)
        for name, path in paths.items():
            look_at(watched, name, path)
        assert watched.problems == []
    watched = Watched(browser, fleet.url, "light")
    use_fleet(watched, fleet)
    use_device(watched)
    use_bundle(watched)
    use_upload(watched, fleet, tmp_path)
    drop_files(watched, fleet)
    cancel_an_upload(watched, fleet, tmp_path)
    log_in_and_out(watched, fleet)
    assert watched.problems == []


def look_at(watched: Watched, name: str, path: str) -> None:
    """Open a page, keep a picture of it, and let axe-core judge it; nothing may stick out to the right."""
    page = watched.open(path)
    if page.locator("#timeline").count():
        page.wait_for_selector("#timeline[data-drawn=yes] .main-svg")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}-{watched.look}.png", full_page=True)
    serious = [each for each in violations(page) if each[1] in ("serious", "critical")]
    assert serious == [], (path, watched.look)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, watched.look)
    page.close()


def use_fleet(watched: Watched, fleet: SmallFleet) -> None:
    page = watched.open("/")
    rows = page.locator("[data-part=devices] tbody tr")
    expect(rows).to_have_count(50)
    expect(rows.first).to_contain_text("cam-001")  # what is wrong comes first
    page.get_by_role("link", name="Next").click()
    expect(rows).to_have_count(BOARDS - 50)
    page.get_by_role("link", name="Previous").click()
    page.get_by_role("link", name="Device", exact=True).click()
    page.get_by_role("link", name="Device", exact=True).click()
    expect(rows.first).to_contain_text(f"cam-{BOARDS:03d}")
    page.get_by_role("link", name="Loss", exact=True).click()
    page.get_by_role("link", name="Loss", exact=True).click()
    expect(rows.first).to_contain_text("cam-003")  # the least of those that have told theirs
    page.get_by_role("link", name="Drift", exact=True).click()
    expect(rows.first).to_contain_text("stands out")
    expect(rows.first).to_contain_text(re.compile("cam-00[12]"))
    expect(page.get_by_text("stands out")).to_have_count(len(FAULTY))
    page.get_by_label("Search").fill("CAM-00")
    page.get_by_label("with an alarm").check()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(2)
    page.get_by_role("link", name="Clear").click()
    expect(rows).to_have_count(50)
    page.get_by_label("Search").fill("no such board")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No device matches.")).to_be_visible()

    page.goto(f"{watched.url}/?state=lost")
    expect(page.locator("[data-live-mark]")).to_have_text("live")
    say(fleet, (topic("cam-060", "status"), encode(Status("lost", 2))))
    expect(rows).to_have_count(1)  # without reloading
    expect(rows.first).to_contain_text("cam-060")
    when = rows.first.locator("time")
    assert re.search(r" UTC\)$", when.get_attribute("title") or "")
    page.get_by_role("link", name="cam-060").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("cam-060")
    page.close()


def say(fleet: SmallFleet, message: tuple[str, bytes]) -> None:
    """In a thread: Playwright has an event loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: asyncio.run(publish(fleet.port, message))).result()


def use_device(watched: Watched) -> None:
    page = watched.open("/devices/cam-001")
    page.wait_for_selector("#timeline[data-drawn=yes] .main-svg")
    drawn = page.evaluate("document.getElementById('timeline').data.map((trace) => [trace.name, trace.x.length])")
    points = dict(drawn)
    assert points["mean loss"] == points["loss evidence"] == points["mean °C"] == 72
    assert points["reboots"] == points["versions"] == points["captures"] == 1 and points["alarms"] == 2
    page.get_by_text("The same as tables").click()
    expect(page.get_by_role("region", name="Curves as a table").locator("tbody tr")).to_have_count(72)
    page.get_by_role("link", name="24 h").click()
    page.wait_for_selector("#timeline[data-drawn=yes] .main-svg")
    assert page.evaluate("document.getElementById('timeline').data[0].x.length") < 30
    page.get_by_label("Command", exact=True).select_option("CaptureNow")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("form .status")).to_contain_text(re.compile("sent|waiting", re.IGNORECASE))
    expect(page.locator("[data-part=commands] tbody tr")).to_contain_text("capture now")
    page.close()


def use_bundle(watched: Watched) -> None:
    page = watched.open(BUNDLE)
    expect(page.locator("[data-part=hero]")).to_contain_text(f"{LAYER} {CAUSE}")
    sizes = page.evaluate(
        "Promise.all([...document.querySelectorAll('.pictures img')].map((image) => "
        "{ image.loading = 'eager'; return image.decode().then(() => image.naturalWidth); }))"
    )
    assert sizes == [64, 64, 64, 64]
    with page.expect_download() as packed:
        page.get_by_role("link", name="Download .tidebundle").click()
    with zipfile.ZipFile(packed.value.path()) as archive:
        assert "manifest.json" in archive.namelist()
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_role("button", name="Unpin")).to_be_visible()
    expect(page.locator("[data-part=hero]")).to_contain_text("pinned")
    page.get_by_label("Local error over the healthy noise").fill("100000")
    page.get_by_role("button", name="Judge again").click()
    expect(page.locator("form[data-kind=rejudge] .status a")).to_be_visible()
    expect(page.locator("[data-part=runs] tbody tr")).to_have_count(1)
    page.get_by_label("Other bundle").select_option(OTHER)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("tr.changed", has_text=LAYER).first).to_contain_text("faulty")
    page.goto(f"{watched.url}{BUNDLE}")
    page.get_by_role("link", name="Open the report").click()
    expect(page.get_by_text(LAYER).first).to_be_visible()
    page.close()


def use_upload(watched: Watched, fleet: SmallFleet, folder: Path) -> None:
    page = watched.open("/upload")
    page.get_by_label("Choose a file").set_input_files(fleet.packed)
    expect(page.locator("#upload-actions a")).to_be_visible()
    page.locator("#upload-actions a").click()
    expect(page.get_by_role("link", name="Open the report")).to_be_visible()  # the page is live

    page.goto(f"{watched.url}/upload")
    packed = folder / "traces.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(fleet.traces.iterdir()):
            archive.write(path, f"traces/{path.name}")
        archive.write(fleet.lab.model, "traces/model.onnx")
        for path in sorted(fleet.lab.artifacts.rglob("*")):
            if path.is_file():
                archive.write(path, f"artifacts/{path.relative_to(fleet.lab.artifacts)}")
    page.get_by_label("Choose a file").set_input_files(packed)
    expect(page.locator("#upload-actions a")).to_have_text("Open the report")
    expect(page.locator("[data-part=runs] tbody tr").first).to_contain_text("no culprit")

    broken = folder / "broken.tidebundle"
    broken.write_bytes(b"this is no bundle")
    page.get_by_label("Choose a file").set_input_files(broken)
    expect(page.locator("#upload-status.bad-text")).to_be_visible()
    page.close()


def dropped(page: Page, *files: Path) -> JSHandle:
    """What a browser hands a page when files are dropped on it."""
    given = [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in files]
    return page.evaluate_handle(
        """(files) => {
          const data = new DataTransfer();
          for (const [name, text] of files) {
            data.items.add(new File([Uint8Array.from(atob(text), (each) => each.charCodeAt(0))], name));
          }
          return data;
        }""",
        given,
    )


def drop_files(watched: Watched, fleet: SmallFleet) -> None:
    page = watched.open("/upload")
    two = dropped(page, fleet.packed, fleet.packed)
    page.dispatch_event("#drop", "drop", {"dataTransfer": two})
    expect(page.locator("#upload-status.bad-text")).to_have_text("One file at a time; zip a folder first.")
    one = dropped(page, fleet.packed)
    page.dispatch_event("#drop", "dragover", {"dataTransfer": one})
    expect(page.locator("#drop.over")).to_be_visible()
    page.dispatch_event("#drop", "drop", {"dataTransfer": one})
    expect(page.locator("#drop.over")).to_have_count(0)
    expect(page.locator("#upload-actions a")).to_have_text("Open the bundle")
    page.close()


def cancel_an_upload(watched: Watched, fleet: SmallFleet, folder: Path) -> None:
    """On a slow line, so that there is something to cancel."""
    page = watched.open("/upload")
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 200_000}
    line = watched.context.new_cdp_session(page)
    line.send("Network.enable")
    line.send("Network.emulateNetworkConditions", slow)
    large = folder / "cancelled.tidebundle"
    large.write_bytes(bytes(32 << 20))
    page.get_by_label("Choose a file").set_input_files(large)
    expect(page.locator("#upload-status")).to_contain_text("Sending cancelled.tidebundle")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#upload-status")).to_have_text("Cancelled. Nothing was taken in.")
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    page.close()
    uploads = fleet.collector.until(
        "api/v1/uploads", lambda rows: all(row["state"] in ("done", "failed") for row in rows)
    )
    assert not [row for row in uploads if row["name"] == large.name and row["state"] == "done"]


def log_in_and_out(watched: Watched, fleet: SmallFleet) -> None:
    """Without a session whoever is on this computer is an operator; a viewer's session shows that it is another."""
    made = CliRunner().invoke(
        command, ["token", "new", "ann", "--role", "viewer", "--json", "--config", str(fleet.collector.config)]
    )
    assert made.exit_code == 0, made.output
    page = watched.open("/login?next=/upload")
    page.get_by_label("Token").fill(json.loads(made.output)["token"])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("you are logged in as viewer")).to_be_visible()
    expect(page.locator(".who")).to_contain_text("ann")
    (cookie,) = (each for each in watched.context.cookies() if each["name"] == COOKIE)
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    assert COOKIE not in {each["name"] for each in watched.context.cookies()}
    watched.context.add_cookies([cookie])  # whoever kept a copy has nothing
    page.goto(f"{watched.url}/upload")
    expect(page.locator("#drop")).to_be_visible()
    watched.context.clear_cookies()
    page.close()
