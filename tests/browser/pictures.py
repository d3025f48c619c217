"""Takes the pictures of the program that the documentation shows: `make pictures`. Needs mosquitto and chromium.

The report is that of `tidegauge demo --seed 10`, the run that the README prints. The collector's pages are those of the
small fleet of the browser tests: its boards are told, its collector, protocol, comparisons and pages are the real ones.
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

from playwright.sync_api import Browser, Page

from browser.chromium import PATIENCE, chromium
from browser.small_fleet import FAULTY, fill, new_lab
from integration.collector_peer import Process, mosquitto

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SEED = 10
#: Pixels, and the space below what a picture ends with.
WIDTH, MARGIN = 1200, 16


def main() -> int:
    parser = argparse.ArgumentParser(description="Takes the pictures of docs/images that show the running program.")
    parser.add_argument("--folder", type=Path, default=IMAGES, help="where the pictures go (docs/images)")
    folder: Path = parser.parse_args().folder
    with chromium() as browser, tempfile.TemporaryDirectory(prefix="pictures-") as work:
        with demo(Path(work)) as report:
            page = opened(browser, report)
            # Down to what to change altogether: below it come a graph and a table, which are for the mouse.
            taken(page, folder / "report.png", below=page.locator("section, .card").filter(has=page.locator("figure")))
        with fleet(Path(work)) as url:
            page = opened(browser, url)
            taken(page, folder / "collector-fleet.png", below=page.locator("tbody tr").nth(7))
            page = opened(browser, f"{url}/devices/{FAULTY[0]}")
            page.wait_for_selector("#timeline[data-drawn=yes] .main-svg")
            taken(page, folder / "collector-device.png", below=page.locator("#timeline"))
    return 0
