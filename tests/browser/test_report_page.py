"""The page of a comparison in a real Chromium, as a model engineer uses it: graph, table, pictures, copy button."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from browser.chromium import MARKS, PATIENCE, chromium, violations
from tidegauge.compare.report import render_html
from tidegauge.compare.types import Comparison
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import build

pytestmark = [*MARKS, pytest.mark.timeout(300)]
LAYER = "bn"


def test_the_page_answers_to_clicks_keys_and_search(tmp_path: Path) -> None:
    answer = build(tmp_path / "board", "classifier").compare([Fault(LAYER, "gain", 1.5)], target_db=30.0)
    file = tmp_path / "report.html"
    file.write_text(render_html(answer))
    with chromium() as browser:
        for look in ("light", "dark"):
            context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=look)  # type: ignore[arg-type]
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            context.set_default_timeout(PATIENCE)
            problems: list[str] = []
            page = context.new_page()
            page.on("console", lambda message, said=problems: said.append(message.text))
            page.on("pageerror", lambda error, said=problems: said.append(str(error)))
            page.goto(file.as_uri())
            _reads(page, answer)
            _clicks(page, answer)
            _filters(page, answer)
            assert not violations(page)
            assert not problems
            context.close()


def _reads(page: Page, answer: Comparison) -> None:
    """Nothing runs off the page, and each picture has pixels."""
    expect(page.locator("h1")).to_contain_text(LAYER)
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll table')].every(t => t.scrollWidth <= t.parentElement.clientWidth)"
    ), "the reasons are read without scrolling sideways"
    assert page.evaluate("[...document.images].filter(i => i.offsetParent).every(i => i.naturalWidth > 0)")
    assert page.locator("figure img").count() >= len(answer.culprits[0].pictures) > 0


def _clicks(page: Page, answer: Comparison) -> None:
    """A click on a layer shows what is known of it within sight, in the graph as in the table."""
    detail = page.locator("#detail")
    other = next(layer for layer in answer.layers if layer.verdict == "inherits")
    node = page.locator(f'g.node[data-index="{other.index}"]')
    page.locator("[data-zoom=fit]").click()
    node.click()
    expect(detail).to_contain_text(other.name)
    assert _seen(page, detail), "the layer that was clicked in the graph is described out of sight"
    page.keyboard.press("Escape")
    expect(detail).not_to_have_class("card pinned")
    last = answer.layers[-1]
    page.locator(f'tr[data-row="{last.index}"] td.name').click()
    expect(detail).to_contain_text(last.name)
    assert _seen(page, detail), "the layer that was clicked in the table is described out of sight"
    detail.get_by_role("button", name="Close").click()
    expect(detail).not_to_have_class("card pinned")
    copy = page.locator("[data-copy]").first
    copy.click()
    expect(copy).not_to_have_text("Copy")
    taken = page.evaluate("navigator.clipboard.readText()") if copy.inner_text() == "Copied" else _selection(page)
    assert taken.strip() == page.locator(f"#{copy.get_attribute('data-copy')}").inner_text().strip()


def _selection(page: Page) -> str:
    return str(page.evaluate("getSelection().toString()"))


def _seen(page: Page, item: Locator) -> bool:
    box, view = item.bounding_box(), page.viewport_size
    assert box is not None and view is not None
    return box["y"] >= 0 and box["y"] + box["height"] <= view["height"]


def _filters(page: Page, answer: Comparison) -> None:
    page.locator("#filter").fill(LAYER)
    expect(page.locator("#shown")).to_contain_text(f"of {len(answer.layers)} layers")
    shown = page.locator("tr[data-verdict]:visible")
    assert 0 < shown.count() < len(answer.layers)
    page.locator("#filter").fill("")
    page.locator("#only").select_option("faulty")
    assert shown.count() == sum(layer.verdict == "faulty" for layer in answer.layers)
    page.locator("#only").select_option("")
    page.get_by_role("button", name="Local / noise").click()
    assert LAYER in page.locator("tr[data-verdict]").first.inner_text(), "the worst layer first"
