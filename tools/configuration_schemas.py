"""Writes agent_config/schemas/ from the configuration types: an editor completes and checks by them.

`python tools/configuration_schemas.py`; a test compares. A file names its schema in its first line, such as
`#:schema schemas/agent.schema.json`, which the TOML plug-ins of the common editors (Taplo, Even Better TOML) read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidegauge.agent.config import AgentConfig
from tidegauge.collector.config import CollectorConfig
from tidegauge.profile import Profile

FOLDER = Path(__file__).resolve().parents[1] / "agent_config" / "schemas"
SCHEMAS: dict[str, type[msgspec.Struct]] = {
    "agent.schema.json": AgentConfig,
    "collector.schema.json": CollectorConfig,
    "profile.schema.json": Profile,
}
#: The newest draft that those plug-ins understand whole.
DRAFT = "http://json-schema.org/draft-07/schema#"
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def schema(name: str) -> bytes:
    """One schema as UTF-8, indented, keys sorted: the same types give the same bytes."""
    kind = SCHEMAS[name]
    _, parts = msgspec.json.schema_components([kind], ref_template="#/definitions/{name}")
    whole = _plain(parts.pop(kind.__name__))  # at the top itself: editors look there for the file's keys
    made = {"$schema": DRAFT, **whole, "title": name.partition(".")[0], "definitions": _plain(parts)}
    return msgspec.json.format(msgspec.json.encode(made, order="sorted"), indent=1) + b"\n"


def _plain(part: Any) -> Any:
    """Whole bounds as whole numbers (`typing` keeps one of two equal annotations, whichever was imported first);
    references where draft 7 lets them stand, alone: a default beside one would be dropped by the editors."""
    if isinstance(part, dict):
        if "$ref" in part and len(part) > 1:
            rest = {key: _plain(value) for key, value in part.items() if key != "$ref"}
            return {"allOf": [{"$ref": part["$ref"]}], **rest}
        return {
            key: int(value) if key in _BOUNDS and isinstance(value, float) and value.is_integer() else _plain(value)
            for key, value in part.items()
        }
    return [_plain(each) for each in part] if isinstance(part, list) else part


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / name).write_bytes(schema(name))


if __name__ == "__main__":
    main()
