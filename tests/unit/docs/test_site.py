"""The documentation as a site: it builds, and a browser that opens it asks no other host for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
#: What a browser fetches by itself: element, attribute. Links that a reader clicks are not among them.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
    ("link", "href"),
}
#: A link that only says something of the page.
SAID = {"canonical", "prev", "next", "alternate", "edit"}


class Fetched(HTMLParser):
    """The addresses of one page that a browser fetches; how many diagrams and list items its article has."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.diagrams, self.items, self._article = 0, 0, False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self._article |= tag == "article"
        self.items += self._article and tag == "li"
        # Material's script fetches Mermaid from another host for each of these.
        self.diagrams += tag == "pre" and "mermaid" in told.get("class", "").split()
        if tag == "link" and told.get("rel", "") in SAID:
            return
        self.addresses += [value for name, value in told.items() if (tag, name) in FETCHED]

    def handle_endtag(self, tag: str) -> None:
        self._article &= tag != "article"


def fetched(page: str) -> Fetched:
    parser = Fetched()
    parser.feed(page)
    return parser


def elsewhere(addresses: list[str]) -> list[str]:
    return [each for each in addresses if each.startswith("//") or each.partition(":")[0] in ("http", "https")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    yield folder


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        found = fetched(page.read_text())
        assert len(found.addresses) > 3, page.name
        assert elsewhere(found.addresses) == [], page.name
        assert found.diagrams == 0, f"{page.name}: draw it as SVG: Mermaid is fetched from another host"
    for sheet in site.rglob("*.css"):
        text = sheet.read_text()
        assert "@import" not in text, sheet.name
        assert "url(http" not in text, sheet.name
        assert "url(//" not in text, sheet.name


def test_every_item_of_a_list_is_one(site: Path) -> None:
    """A step whose second paragraph isn't indented by four ends its list, and the next steps run into one another."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if (site / built(page)).exists()]
    assert len(pages) > 30
    for page in pages:
        text = re.sub(r"(?ms)^ *```.*?^ *```$", "", page.read_text())
        written = re.findall(r"(?m)^ *(?:\d+\.|[*-]) ", text)
        assert fetched((site / built(page)).read_text()).items == len(written), page.name


def built(page: Path) -> Path:
    return page.relative_to(ROOT / "docs").with_suffix(".html")


def test_what_would_be_fetched_is_seen() -> None:
    page = """<link rel="canonical" href="https://a.example/"><link rel="stylesheet" href="https://b.example/x.css">
    <a href="https://c.example/">there</a><script src="//d.example/x.js"></script><img src="images/x.png">
    <pre class="mermaid"><code>graph LR</code></pre>"""
    found = fetched(page)
    assert elsewhere(found.addresses) == ["https://b.example/x.css", "//d.example/x.js"]
    assert found.diagrams == 1
