"""Prints docs/configuration.md from the configuration types, so that it can't drift from them.

`python tools/configuration_reference.py > docs/configuration.md`; a test compares the two.
"""

from __future__ import annotations

import inspect
import types
import typing
from typing import Any

import msgspec
from msgspec import Meta

from tidegauge.agent.config import AgentConfig
from tidegauge.collector.config import CollectorConfig
from tidegauge.profile import Profile

HEAD = """\
# Configuration

Generated from the types in the code by `tools/configuration_reference.py`. Files are TOML. An unknown key is an error
that names the nearest known one; a missing key, a wrong type or a value out of bounds is an error that names the key.
Relative paths are relative to the folder of the file they stand in. Commented examples are in `agent_config/`.
"""


def _bounds(meta: Meta) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤"}
    parts = [f"{sign} {getattr(meta, name):g}" for name, sign in signs.items() if getattr(meta, name) is not None]
    if meta.pattern is not None:
        parts.append(f"matches `{meta.pattern}`")
    return ", ".join(parts)


def _describe(kind: Any) -> tuple[str, str]:
    """Type and bounds of a field, in words."""
    origin = typing.get_origin(kind)
    if origin is typing.Annotated:
        inner, *metas = typing.get_args(kind)
        return _describe(inner)[0], "; ".join(_bounds(m) for m in metas if isinstance(m, Meta))
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{value}`" for value in typing.get_args(kind)), ""
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_describe(each)[0] for each in typing.get_args(kind) if each is not type(None)), ""
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    if kind in names:
        return names[kind], ""
    if origin is tuple:
        return "list", ""
    if origin is dict:
        return "table", ""
    return getattr(kind, "__name__", str(kind)), ""


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()  # type: ignore[operator]
    return f"`{msgspec.json.encode(value).decode()}`"


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        return next((s for s in map(_struct_of, typing.get_args(kind)) if s is not None), None)
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def table(struct: type[msgspec.Struct], path: str) -> list[str]:
    """The section of one table, and those of the tables in it."""
    lines = [f"### `[{path}]`" if path else "### Top level", "", inspect.getdoc(struct) or "", ""]
    plain, nested = [], []
    for field in msgspec.structs.fields(struct):
        inner = _struct_of(field.type)
        if inner is not None:
            nested += ["", *table(inner, f"{path}.{field.encode_name}".lstrip("."))]
            continue
        kind, bounds = _describe(field.type)
        plain.append(f"| `{field.encode_name}` | {kind} | {_default(field)} | {bounds} |")
    if plain:
        lines += ["| key | type | default | bounds |", "|---|---|---|---|", *plain]
    return lines + nested


def reference() -> str:
    parts = [HEAD]
    for title, struct in (
        ("agent.toml", AgentConfig),
        ("collector.toml", CollectorConfig),
        ("model profile", Profile),
    ):
        parts += [f"\n## {title}\n", "\n".join(table(struct, ""))]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
