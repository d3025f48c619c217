"""A real Chromium, and axe-core's judgement of a page in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from needs import unless

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: Of each module whose tests need it.
MARKS = [pytest.mark.slow, unless(PROGRAM is not None, "chromium is not installed")]
#: Milliseconds that anything may take on a slow machine.
PATIENCE = 90_000
expect.set_options(timeout=PATIENCE)
_AXE = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text()


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=PROGRAM, args=["--no-sandbox"])
        yield opened
        opened.close()


def violations(page: Page) -> list[tuple[str, str, list[str]]]:
    """What axe-core finds on the page as it is now: rule, impact, and the elements' HTML."""
    page.evaluate(_AXE)
    found: list[dict[str, Any]] = page.evaluate("axe.run({resultTypes: ['violations']})")["violations"]
    return [(each["id"], each["impact"], [node["html"] for node in each["nodes"]]) for each in found]
