"""docs/exit-codes.md is the table in the code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("exit_codes", ROOT / "tools" / "exit_codes_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "exit-codes.md").read_text() == module.reference(), "run `make docs`"
