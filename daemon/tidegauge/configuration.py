"""Reading a TOML file into a typed struct, with errors that name the file, the key and the cure."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegauge.errors import TidegaugeError

T = TypeVar("T")

UNKNOWN_KEY = re.compile(r"unknown field `(?P<key>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
MISSING_KEY = re.compile(r"missing required field `(?P<key>[^`]+)`(?: - at `\$\.?(?P<path>[^`]*)`)?")
BAD_CHOICE = re.compile(r"Invalid enum value '(?P<value>.*)'", re.DOTALL)
TYPE_NAME = re.compile(r"`(\w+)`")
#: msgspec's words for types, as TOML calls them.
TOML_NAMES = {"str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false"}
TOML_NAMES |= {"object": "a table", "array": "an array", "null": "nothing"}
BAD_VALUE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


class ConfigurationError(TidegaugeError):
    """A configuration file can't be used."""


def load_toml(path: Path, kind: type[T]) -> T:
    """Read `path` as `kind` (a msgspec struct that forbids unknown fields).

    Raises `ConfigurationError` for a missing or unreadable file, broken TOML, an unknown key (with the nearest known
    one), a missing key, or a value of the wrong type or range.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} does not exist", "give the path of a configuration file") from error
    except IsADirectoryError as error:
        raise ConfigurationError(f"{path} is a folder", "give the path of the file in it") from error
    except PermissionError as error:
        raise ConfigurationError(f"{path} can't be read", "check its owner and mode") from error
    except OSError as error:
        said = error.strerror or type(error).__name__
        raise ConfigurationError(
            f"{path} can't be read ({said})", "check the path, and the disk that it is on"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text", "save it as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not valid TOML", str(error)) from error
    for key, number in _floats(data):
        if not math.isfinite(number):
            raise ConfigurationError(f"{path}: key `{key}` has a wrong value", f"{number} is no finite number")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _explain(path, kind, str(error)) from error


def _floats(value: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Every number with a point in it, with the path of its key."""
    if isinstance(value, float):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _floats(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _floats(inner, key)


def _explain(path: Path, kind: Any, message: str) -> ConfigurationError:
    if found := UNKNOWN_KEY.search(message):
        where, key = _dotted(found["path"]), found["key"]
        return ConfigurationError(f"{path}: unknown key `{_join(where, key)}`", _nearest(kind, where, key))
    if found := MISSING_KEY.search(message):
        return ConfigurationError(f"{path}: key `{_join(_dotted(found['path']), found['key'])}` is missing", "add it")
    found = BAD_VALUE.match(message)
    assert found is not None  # the pattern matches any text
    key = ".".join(_dotted(found["path"]))
    subject = f"key `{key}` has a wrong value" if key else "the file has a wrong value"
    return ConfigurationError(f"{path}: {subject}", _what(kind, _dotted(found["path"]), found["what"]))


def _what(kind: Any, where: list[str], what: str) -> str:
    """What is wrong with a value, in TOML's words; of a choice, what can be chosen."""
    if said := BAD_CHOICE.fullmatch(what):
        known = _choices(kind, where)
        if near := difflib.get_close_matches(said["value"], known, n=1):
            return f"{said['value']!r} is not known, did you mean {near[0]!r}?"
        if known:
            return f"{said['value']!r} is not known, give one of {', '.join(known)}"
    return TYPE_NAME.sub(lambda name: TOML_NAMES.get(name[1], name[1]), what)


def _choices(kind: Any, where: list[str]) -> list[str]:
    """Values that the field at `where` can take, where it is a choice of words; else none."""
    for part in where:
        is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        field = next((f for f in msgspec.structs.fields(kind) if f.encode_name == part), None) if is_struct else None
        if field is None:
            return []
        kind = field.type
    return [value for value in msgspec.json.schema(kind).get("enum", []) if isinstance(value, str)]


def _nearest(kind: Any, where: list[str], key: str) -> str:
    """What may have been meant: a key of this table that is written alike, else the same key of another table."""
    known = _fields(kind, where)
    if near := difflib.get_close_matches(key, known, n=1):
        return f"did you mean `{near[0]}`?"
    tables = {".".join(table): fields for table, fields in _tables(kind)}
    if homes := [name or "the top of the file" for name, fields in tables.items() if key in fields]:
        return f"did you mean the key `{key}` of {' or '.join(homes)}?"
    everywhere = {f"{name}.{field}".lstrip("."): field for name, fields in tables.items() for field in fields}
    if near := difflib.get_close_matches(key, everywhere.values(), n=1):
        full = next(name for name, field in everywhere.items() if field == near[0])
        return f"did you mean `{full}`?"
    return f"known keys here are {', '.join(known)}"


def _tables(kind: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Every table of a configuration's type with its keys."""
    yield path, [field.encode_name for field in msgspec.structs.fields(kind)]
    for field in msgspec.structs.fields(kind):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _tables(field.type, (*path, field.encode_name))


def _dotted(path: str | None) -> list[str]:
    return [part for part in (path or "").split(".") if part]


def _join(where: list[str], key: str) -> str:
    return ".".join([*where, key])


def _fields(kind: Any, where: list[str]) -> list[str]:
    """Names of the fields of the struct at `where` inside `kind`; empty where it isn't a struct."""
    for part in where:
        field = next((f for f in msgspec.structs.fields(kind) if f.encode_name == part), None)
        if field is None:
            return []
        kind = field.type
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return []
    return [f.encode_name for f in msgspec.structs.fields(kind)]
