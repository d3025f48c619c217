"""The published JSON Schemas of the answers, made from their types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidegauge.compare.exact_types import ExactComparison
from tidegauge.compare.release_types import ReleaseComparison
from tidegauge.compare.types import Comparison

#: File name in docs/schemas and the type that it describes.
SCHEMAS: dict[str, Any] = {
    "comparison.schema.json": Comparison,
    "exact.schema.json": ExactComparison,
    "release.schema.json": ReleaseComparison,
}
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> bytes:
    """One of `SCHEMAS`."""
    return document(name, SCHEMAS[name])


def document(name: str, kind: Any) -> bytes:
    """A JSON Schema as UTF-8, indented, keys sorted: the same types give the same bytes."""
    made = {"$schema": _DRAFT, "$id": f"tidegauge/{name}", **_bounds_whole(msgspec.json.schema(kind))}
    return msgspec.json.format(msgspec.json.encode(made, order="sorted"), indent=1) + b"\n"


def _bounds_whole(part: Any) -> Any:
    """1.0 as 1: `typing` keeps one of two equal annotations, and which one depends on what was imported first."""
    if isinstance(part, dict):
        return {
            key: int(value)
            if key in _BOUNDS and isinstance(value, float) and value.is_integer()
            else _bounds_whole(value)
            for key, value in part.items()
        }
    return [_bounds_whole(each) for each in part] if isinstance(part, list) else part


def write(folder: Path) -> list[Path]:
    """Write all to a folder, docs/schemas in the repository."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (folder / name).write_bytes(schema(name))
    return [folder / name for name in SCHEMAS]


if __name__ == "__main__":
    write(Path("docs/schemas"))
