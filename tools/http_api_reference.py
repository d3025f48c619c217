"""Prints docs/http-api.md from the OpenAPI document of the collector. `make docs`; a test compares the two."""

from __future__ import annotations

import re
from typing import Any

from tidegauge.collector.api_description import description

HEAD = """\
# HTTP API

Generated from the collector's OpenAPI document by `tools/http_api_reference.py`. A running collector tells it at
`/schema/openapi.json`. Who may ask, and how uploads work, is in [The collector](collector.md#who-may-see-and-do-what).

Reading needs the role `viewer`, everything else the role `operator`. Send `Authorization: Bearer TOKEN`. Without a
token, on the collector's own computer or behind a proxy that logs people in, a change needs the header `X-CSRF-Token`
with the `csrf_token` of `/api/v1/session`. Errors are `{"status_code": …, "detail": …}`. Times are Unix seconds, sizes
bytes; a number that is undefined is `null`.
"""
METHODS = ("get", "post", "put", "patch", "delete")


def reference(document: dict[str, Any]) -> str:
    schemas = document["components"]["schemas"]
    parts = [HEAD, *(_operations(path, item) for path, item in sorted(document["paths"].items()))]
    return "\n".join([*parts, "## Types\n", *(_type(name, schemas[name]) for name in sorted(schemas))])


def _operations(path: str, item: dict[str, Any]) -> str:
    return "\n".join(_operation(method, path, item[method]) for method in METHODS if method in item)


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    lines = [f"## {method.upper()} {path}\n", operation.get("description", "").strip() + "\n"]
    rows = [_parameter(each) for each in operation.get("parameters", [])]
    if rows:
        lines += ["| parameter | in | type | |", "|---|---|---|---|", *rows, ""]
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        lines.append(f"Body: {_named(media.get('schema', {}))} (`{kind}`)\n")
    for status, answer in sorted(operation["responses"].items()):
        if status.startswith("2"):
            said = [f"{_named(media['schema'])} (`{kind}`)" for kind, media in answer.get("content", {}).items()]
            lines.append(f"Answer: {status}" + (f", {', '.join(said)}" if said else "") + "\n")
    return "\n".join(lines)


def _parameter(each: dict[str, Any]) -> str:
    said = each.get("description") or each["schema"].get("description", "")
    default = each["schema"].get("default")
    more = "required" if each.get("required") and each["in"] != "path" else ""
    more = f"default {default!r}" if default not in (None, "") else more
    words = "; ".join(part for part in (_words(said).rstrip("."), more) if part)
    return f"| `{each['name']}` | {each['in']} | {_named(each['schema'])} | {words} |"


def _title(name: str) -> str:
    """`Page_tidegauge.collector.tables.Bundle_` is the generator's name of a page of bundles."""
    return re.sub(r"_[\w.]*?(\w+)_$", r"Of\1", name)


def _type(name: str, schema: dict[str, Any]) -> str:
    lines = [f"### {_title(name)}\n"]
    if schema.get("description"):
        lines.append(_words(schema["description"]) + "\n")
    rows = [f"| `{key}` | {_named(value)} |" for key, value in schema.get("properties", {}).items()]
    return "\n".join([*lines, "| member | type |", "|---|---|", *rows, ""] if rows else [*lines, _named(schema) + "\n"])


def _named(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{_title(name)}](#{_title(name).lower()})"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_named(each) for each in schema[key]))
    if "enum" in schema:
        return " or ".join(f"`{value!r}`".replace("'", '"') for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']!r}`"
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {_named(schema.get('items') or {})}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_named(schema['additionalProperties'])}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _words(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    print(reference(description()), end="")
