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
_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema(name: str) -> bytes:
    """A JSON Schema as UTF-8, indented, keys sorted: the same types give the same bytes."""
    made = {"$schema": _DRAFT, "$id": f"tidegauge/{name}", **msgspec.json.schema(SCHEMAS[name])}
    return msgspec.json.format(msgspec.json.encode(made, order="sorted"), indent=1) + b"\n"


def write(folder: Path) -> list[Path]:
    """Write all to a folder, docs/schemas in the repository."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (folder / name).write_bytes(schema(name))
    return [folder / name for name in SCHEMAS]


if __name__ == "__main__":
    write(Path("docs/schemas"))
