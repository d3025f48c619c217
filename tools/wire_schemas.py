"""Writes the JSON Schemas of what goes over the wire into docs/schemas, from the types that the code reads and writes.

`python tools/wire_schemas.py`; a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegauge.agent.control_messages import AnyCommand
from tidegauge.bundles.manifest import Manifest
from tidegauge.compare.schema import document
from tidegauge.link import command_wire, wire
from tidegauge.spool.records import Record

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"

#: File name in docs/schemas and the type that it describes.
SCHEMAS: dict[str, Any] = {
    "wire-status.schema.json": wire.Status,
    "wire-alarm.schema.json": wire.AlarmChange,
    "wire-result.schema.json": wire.Result,
    "wire-init.schema.json": wire.Init,
    "wire-question.schema.json": wire.Question,
    "wire-file-response.schema.json": wire.FileResponse,
    "wire-signed.schema.json": command_wire.Signed,
    "wire-command.schema.json": command_wire.Order,
    "wire-command-action.schema.json": AnyCommand,
    "wire-command-answer.schema.json": command_wire.CommandAnswer,
    "wire-record.schema.json": Record,
    "manifest.schema.json": Manifest,
}


def main() -> None:
    for name, kind in SCHEMAS.items():
        (FOLDER / name).write_bytes(document(name, kind))


if __name__ == "__main__":
    main()
