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
from tidegauge.agent.config_changes import at_once
from tidegauge.collector.config import CollectorConfig
from tidegauge.link.operator import OperatorConfig
from tidegauge.profile import Profile

HEAD = """\
# Configuration

Generated from the types in the code by `tools/configuration_reference.py`. Files are TOML. An unknown key is an error
that names the nearest known one; a missing key, a wrong type or a value out of bounds is an error that names the key.
Relative paths are relative to the folder of the file they stand in. Commented examples are in `agent_config/`;
`agent_config/schemas/` has a JSON Schema of each file. An editor that reads the line `#:schema …` at the top of a file
(Taplo, Even Better TOML) completes and checks by it.

## What a running agent takes

A running agent reads `agent.toml` again when it changes, and on SIGHUP (`systemctl reload tidegauge-agent`). The new
file is checked whole before anything of it is taken; where it is wrong, the old settings stay, and the log,
`tidegauge status` and `tidegauge_config_last_reload_successful` (0) say so. Keys marked **at once** are then in force:
another camera is opened, the link connects anew. The others wait for a restart of the agent, which goes on with the
samples, evidence and golden tensors it has; `status` names the keys that wait, and `tidegauge_config_restart_keys`
counts them. The model's profile waits as a whole.

A replaced model or artifacts folder is noticed as well. Once its files have rested for two seconds, they are checked
without opening anything on the accelerator. What passes is taken up: the pipeline is stopped in order, what was
accepted is void, and a new acceptance begins, which is compared with the old one. What fails is refused: what was
opened before goes on running, nothing is captured, `tidegauge_artifacts_refused` is 1, and `status` names the file. A
network that was cut off in the middle can't be told from a whole one by its file; it is taken up, its session can't be
opened, and after `supervision.failed_creates` tries an alarm says so. Copy to another folder and rename it.
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


def table(struct: type[msgspec.Struct], path: str, live: bool = False) -> list[str]:
    """The section of one table, and those of the tables in it. `live`: a running agent takes some of the keys."""
    lines = [f"### `[{path}]`" if path else "### Top level", "", inspect.getdoc(struct) or "", ""]
    plain, nested = [], []
    for field in msgspec.structs.fields(struct):
        inner = _struct_of(field.type)
        if inner is not None:
            nested += ["", *table(inner, f"{path}.{field.encode_name}".lstrip("."), live)]
            continue
        kind, bounds = _describe(field.type)
        row = f"| `{field.encode_name}` | {kind} | {_default(field)} | {bounds} |"
        if live:
            row += " **at once** |" if at_once(f"{path}.{field.encode_name}".lstrip(".")) else " restart |"
        plain.append(row)
    if plain:
        taken = (" taken |", "---|") if live else ("", "")
        lines += [f"| key | type | default | bounds |{taken[0]}", f"|---|---|---|---|{taken[1]}", *plain]
    return lines + nested


def reference() -> str:
    parts = [HEAD]
    for title, struct in (
        ("agent.toml", AgentConfig),
        ("collector.toml", CollectorConfig),
        ("operator.toml", OperatorConfig),
        ("model profile", Profile),
    ):
        parts += [f"\n## {title}\n", "\n".join(table(struct, "", struct is AgentConfig))]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
