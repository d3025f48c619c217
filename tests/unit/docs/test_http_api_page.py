"""docs/http-api.md is the API as the collector describes it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tidegauge.collector.api_description import description

ROOT = Path(__file__).parents[3]


def test_the_page_is_the_description() -> None:
    spec = importlib.util.spec_from_file_location("http_api_reference", ROOT / "tools" / "http_api_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    document = description()
    assert (ROOT / "docs" / "http-api.md").read_text() == module.reference(document), "run `make docs`"
    undescribed = [
        f"{method} {path}"
        for path, item in document["paths"].items()
        for method in module.METHODS
        if method in item and not item[method].get("description")
    ]
    assert undescribed == [] and len(document["paths"]) >= 30
