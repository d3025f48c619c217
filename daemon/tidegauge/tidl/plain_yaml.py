"""The YAML that TI's tools write (`param.yaml`, `config.yaml`, `result.yaml`): block style, plain and quoted scalars.

Source: real files of edgeai-benchmark and edgeai-modelmaker (PyYAML's `safe_dump`, block style), read as PyYAML's YAML
1.1 reads them. Everything else that YAML knows (tags, anchors, aliases, flow collections with content, block scalars,
several documents) is refused by name: such a file was not written by those tools, or would mean code or expansion.
"""

from __future__ import annotations

import re
from typing import TypeAlias

from tidegauge.tidl.errors import FormatError

Yaml: TypeAlias = "bool | int | float | str | list[Yaml] | dict[str, Yaml] | None"

#: A larger file is no parameter file.
LARGEST = 4 << 20
_DEEPEST = 24
_MOST_CONTINUATIONS = 1000
_CURE = "keep the file as TI's tools wrote it (block style, without tags, anchors or flow lists)"

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,30})", re.ASCII)
_FLOAT = re.compile(
    r"[-+]?(?:[0-9]{1,40}\.[0-9]{0,40}(?:[eE][-+][0-9]{1,4})?|\.[0-9]{1,40}(?:[eE][-+][0-9]{1,4})?)", re.ASCII
)
# What YAML 1.1 reads as a number in another base or grouping; the tools write none.
_ODD_NUMBER = re.compile(
    r"[-+]?(?:0[0-7_]+|0x[0-9a-fA-F_]+|0b[01_]+|[0-9][0-9_]*_[0-9_.]*|[0-9]+(?::[0-5]?[0-9])+)", re.ASCII
)
_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf"), float("inf")),
    "-.inf": float("-inf"),
    ".nan": float("nan"),
}
_KEY = re.compile(
    r"""(?P<key>'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[^\s'"#\[\]{}&*!|>%@`,-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+(?P<rest>.*))?"""
)
_ESCAPES = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "0": "\0",
    '"': '"',
    "\\": "\\",
    "/": "/",
    " ": " ",
    "e": "\x1b",
    "a": "\a",
}
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_FORBIDDEN = {
    "&": "an anchor",
    "*": "an alias",
    "!": "a tag",
    "|": "a block scalar",
    ">": "a block scalar",
    "%": "a directive",
    "@": "a reserved sign",
    "`": "a reserved sign",
    "[": "a flow list",
    "{": "a flow mapping",
    "?": "a complex key",
}


class _Line:
    __slots__ = ("indent", "number", "text")

    def __init__(self, number: int, indent: int, text: str) -> None:
        self.number, self.indent, self.text = number, indent, text


def parse(text: str) -> Yaml:
    """The document's value. Raises FormatError with the line."""
    if len(text) > LARGEST:
        raise FormatError(f"yaml: {len(text)} characters are no parameter file", _CURE)
    lines = _lines(text)
    if not lines:
        return None
    parser = _Parser(lines)
    value = parser.block(lines[0].indent, 0)
    if parser.at < len(lines):
        raise FormatError("yaml: the indentation fits no open block", _CURE, line=lines[parser.at].number)
    return value


def _lines(text: str) -> list[_Line]:
    found: list[_Line] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.rstrip("\r ")
        stripped = line.lstrip(" ")
        if stripped.startswith("\t"):
            raise FormatError("yaml: a tab indents", _CURE, line=number)
        if not stripped or stripped.startswith("#") or (number == 1 and line == "---"):
            continue
        if line in ("---", "..."):
            raise FormatError("yaml: a second document", _CURE, line=number)
        found.append(_Line(number, len(line) - len(stripped), stripped))
    return found


class _Parser:
    def __init__(self, lines: list[_Line]) -> None:
        self.lines = lines
        self.at = 0

    def block(self, indent: int, depth: int) -> Yaml:
        line = self.lines[self.at]
        if depth > _DEEPEST:
            raise FormatError(f"yaml: nested deeper than {_DEEPEST}", _CURE, line=line.number)
        if line.text == "-" or line.text.startswith("- "):
            return self._sequence(indent, depth)
        if _KEY.fullmatch(line.text):
            return self._mapping(indent, depth)
        self.at += 1
        return self._scalar(line.text, indent - 1, line.number)

    def _sequence(self, indent: int, depth: int) -> list[Yaml]:
        items: list[Yaml] = []
        while (line := self._here(indent)) is not None and (line.text == "-" or line.text.startswith("- ")):
            rest = line.text[1:].lstrip(" ")
            if rest and (rest == "-" or rest.startswith("- ") or _KEY.fullmatch(rest)):
                # The item is a block of its own that begins behind the dash.
                inner = indent + len(line.text) - len(rest)
                self.lines[self.at] = _Line(line.number, inner, rest)
                items.append(self.block(inner, depth + 1))
                continue
            self.at += 1
            items.append(self._scalar(rest, indent, line.number) if rest else self._nested(indent, depth, dash=False))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Yaml]:
        items: dict[str, Yaml] = {}
        while (line := self._here(indent)) is not None:
            match = _KEY.fullmatch(line.text)
            if match is None:
                raise FormatError(f"yaml: {line.text[:40]!r} is not `key: value`", _CURE, line=line.number)
            key = _scalar(match["key"], line.number)
            name = match["key"] if not isinstance(key, str) else key
            if name in items:
                raise FormatError(f"yaml: the key {name[:60]!r} comes twice", _CURE, line=line.number)
            self.at += 1
            rest = match["rest"] or ""
            plain = rest and not rest.startswith("#")
            items[name] = self._scalar(rest, indent, line.number) if plain else self._nested(indent, depth, dash=True)
        return items

    def _here(self, indent: int) -> _Line | None:
        """The next line, if it belongs to the block of this indentation."""
        if self.at == len(self.lines) or self.lines[self.at].indent < indent:
            return None
        line = self.lines[self.at]
        if line.indent > indent:
            raise FormatError("yaml: a line is indented more than its block", _CURE, line=line.number)
        return line

    def _nested(self, indent: int, depth: int, *, dash: bool) -> Yaml:
        """The block below a key or a dash. PyYAML writes the items of a list below a key without indentation."""
        if self.at == len(self.lines):
            return None
        line = self.lines[self.at]
        same = dash and line.indent == indent and (line.text == "-" or line.text.startswith("- "))
        return self.block(line.indent, depth + 1) if line.indent > indent or same else None

    def _scalar(self, first: str, indent: int, number: int) -> Yaml:
        """A scalar with its continuation lines: those indented more than its block. One blank joins them."""
        parts = [first]
        quote = first[0] if first[0] in "'\"" else ""
        while self.at < len(self.lines) and self.lines[self.at].indent > indent and not _closed(parts, quote):
            parts.append(self.lines[self.at].text)
            self.at += 1
            if len(parts) > _MOST_CONTINUATIONS:
                raise FormatError(f"yaml: one text of more than {_MOST_CONTINUATIONS} lines", _CURE, line=number)
        return _scalar(" ".join(parts), number)


def _closed(parts: list[str], quote: str) -> bool:
    return bool(quote) and _quoted_end(" ".join(parts), quote) is not None


def _quoted_end(text: str, quote: str) -> int | None:
    at = 1
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 2
        elif text[at] != quote:
            at += 1
        elif quote == "'" and text[at + 1 : at + 2] == "'":
            at += 2
        else:
            return at
    return None


def _scalar(text: str, number: int) -> Yaml:
    first = text[:1]
    if first in ("'", '"'):
        return _quoted(text, first, number)
    text = re.split(r"\s#", text, maxsplit=1)[0].rstrip()
    if text == "[]":
        return []
    if text == "{}":
        return {}
    if first in _FORBIDDEN and not (first == "?" and text[1:2].strip()):
        raise FormatError(f"yaml: {_FORBIDDEN[first]} ({text[:40]!r})", _CURE, line=number)
    if ": " in text or text.endswith(":"):
        raise FormatError(f"yaml: a mapping inside a scalar ({text[:40]!r})", _CURE, line=number)
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _ODD_NUMBER.fullmatch(text):
        raise FormatError(f"yaml: {text[:40]!r} is a number in a form that the tools do not write", _CURE, line=number)
    return text


def _quoted(text: str, quote: str, number: int) -> str:
    end = _quoted_end(text, quote)
    if end is None:
        raise FormatError("yaml: a quoted text has no end", _CURE, line=number)
    if text[end + 1 :].strip() and not text[end + 1 :].lstrip().startswith("#"):
        raise FormatError("yaml: something follows a quoted text", _CURE, line=number)
    inner = text[1:end]
    return inner.replace("''", "'") if quote == "'" else _ESCAPE.sub(lambda match: _escape(match, number), inner)


def _escape(match: re.Match[str], number: int) -> str:
    code = match[1] or match[2] or match[3]
    if code is None:
        letter = _ESCAPES.get(match[4])
        if letter is None:
            raise FormatError(f"yaml: the escape \\{match[4]} is unknown", _CURE, line=number)
        return letter
    value = int(code, 16)
    if value > 0x10FFFF or 0xD800 <= value < 0xE000:
        raise FormatError(f"yaml: the escape {match[0]} is no character", _CURE, line=number)
    return chr(value)
