"""docs/preflight.md is the page that the checks' own texts make."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("preflight_reference", ROOT / "tools" / "preflight_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "preflight.md").read_text()
    assert written == module.reference(), "run `make docs`"
