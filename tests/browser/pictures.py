"""Takes the pictures of the running program that the documentation shows: `make pictures`.

The report is that of `tidegauge demo --seed 10`, the run that the README prints. The collector's pages are those of the
browser tests' small fleet: what its boards say is made up, but collector, protocol, comparisons and pages are real.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page

from browser.chromium import PATIENCE, PROGRAM, chromium
from browser.small_fleet import FAULTY, fill, new_lab
from integration.collector_peer import MOSQUITTO, Process, mosquitto

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SEED = 10
#: In pixels. Space is what a picture has below that with which it ends.
WIDTH, HEIGHT, SPACE = 1200, 900, 16
#: Rows of the fleet's table that fit a picture.
ROWS = 7
STOP_SECONDS = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes the pictures of the running program for the documentation.")
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where they go (docs/images)")
    folder: Path = parser.parse_args().folder
    if MOSQUITTO is None or PROGRAM is None:
        print("pictures: needs mosquitto and chromium (Debian packages of these names)", file=sys.stderr)
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidegauge-pictures-") as work:
        # The browser comes last: while it is open, its event loop lets no other run in this thread.
        with demo(Path(work) / "demo") as report, chromium() as browser:
            page = opened(browser, report)
            taken(page, folder / "report.png", page.locator("section.culprit").first)
        with fleet(Path(work)) as url, chromium() as browser:
            page = opened(browser, url)
            taken(page, folder / "collector-fleet.png", page.locator("tbody tr").nth(ROWS - 1))
            page = opened(browser, f"{url}/devices/{FAULTY[0]}")
            page.wait_for_selector("#timeline[data-drawn=yes] .main-svg")
            taken(page, folder / "collector-device.png", page.locator("#timeline"))
    return 0


@contextmanager
def demo(folder: Path) -> Iterator[str]:
    """The address of the demo's report, while the demo still runs."""
    command = [sys.executable, "-m", "tidegauge", "demo", "--seed", str(SEED), "--keep", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = []
        try:
            for line in process.stdout:
                told.append(line)
                if found := re.search(r"http://\S+/report\.html", line):
                    break
            else:
                raise RuntimeError(f"the demo ended without a report:\n{''.join(told)}")
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.stdout.read()  # it says more, and must not wait for a reader
            process.wait(STOP_SECONDS)


@contextmanager
def fleet(folder: Path) -> Iterator[str]:
    """The address of a collector that the small fleet has spoken to."""
    for name in ("lab", "made"):
        (folder / name).mkdir()
    lab = new_lab(folder / "lab")
    with mosquitto(folder) as port:
        collector = Process(folder, port, f'compile_library = "{folder}/lab"\n')
        collector.start()
        try:
            yield fill(collector, port, lab, folder / "made").url
        finally:
            collector.stop()


def opened(browser: Browser, address: str) -> Page:
    context = browser.new_context(
        viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light", timezone_id="Europe/Berlin", locale="en-GB"
    )
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    answer = page.goto(address)
    if answer is None or answer.status != 200:
        raise RuntimeError(f"{address} can't be shown: {answer and answer.status}")
    return page


def taken(page: Page, file: Path, last: Locator) -> None:
    """The page from its top down to the end of `last`."""
    page.wait_for_function("[...document.images].filter(i => i.offsetParent).every(i => i.complete && i.naturalWidth)")
    box = last.bounding_box()
    assert box is not None
    height = box["y"] + box["height"] + SPACE
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
    print(f"{file.name}: {WIDTH} × {height:.0f} pixels, {file.stat().st_size // 1000} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
