"""The quantisation proto: scales, zero points and ranges by layer name, in protobuf's text format.

Source: edgeai-tidl-tools docs/quantization_proto.md; checked against a real AM62A compile of tools 10_00_08_00. Only
what the format needs of the text format is read: messages, strings, numbers, words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from tidegauge.tidl.errors import FormatError

_TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<name>[A-Za-z_][\w.]*)|(?P<number>[-+]?[\d.][\w.+-]*|[-+](?:inf|nan)\w*)"""
    r"""|(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(?P<mark>[{}:<>\[\]])""",
    re.ASCII,
)
_DEEPEST = 8
_LONGEST_NUMBER = 64
_ESCAPE = re.compile(r"\\(.)")

Scalar = str
Message = dict[str, list["Scalar | Message"]]


class QuantTensor(msgspec.Struct, frozen=True):
    """One `outputs`, `weights` or `bias` block. Scales as written, one, or one a channel; `element` a type's code.

    `values`: of a bias, as written, in the unit of the layer's sums; empty elsewhere.
    """

    element: int | None
    scales: tuple[str, ...]
    zero_points: tuple[int, ...]
    minimum: str | None
    maximum: str | None
    values: tuple[str, ...] = ()


class QuantLayer(msgspec.Struct, frozen=True):
    """One layer, in order of execution. A graph output repeats the name of the layer before it."""

    name: str
    kind: str
    bit_depth: int | None
    outputs: tuple[QuantTensor, ...]
    weights: tuple[QuantTensor, ...]
    bias: tuple[QuantTensor, ...]


def parse(text: str) -> tuple[QuantLayer, ...]:
    """All layers. Raises FormatError; also where fewer follow than `num_layers` promises."""
    root = _message(_tokens(text), 0)
    layers = tuple(_layer(item) for item in _messages(root, "layers"))
    promised = _integer(root, "num_layers")
    if promised is None:
        raise FormatError("quantisation proto: there is no num_layers")
    if promised != len(layers):
        raise FormatError(f"quantisation proto: num_layers is {promised}, {len(layers)} layers follow")
    return layers


def _layer(item: Message) -> QuantLayer:
    name = _scalar(item, "layer_name")
    if name is None:
        raise FormatError("quantisation proto: a layer has no layer_name")
    return QuantLayer(
        name=name,
        kind=_scalar(item, "layer_type") or "",
        bit_depth=_integer(item, "bit_depth"),
        outputs=tuple(_tensor(block) for block in _messages(item, "outputs")),
        weights=tuple(_tensor(block) for block in _messages(item, "weights")),
        bias=tuple(_tensor(block) for block in _messages(item, "bias")),
    )


def _tensor(block: Message) -> QuantTensor:
    return QuantTensor(
        element=_integer(block, "element_type"),
        scales=tuple(value for value in block.get("scale", []) if isinstance(value, str)),
        zero_points=tuple(_whole(value, "zero_point") for value in block.get("zero_point", [])),
        minimum=_scalar(block, "min"),
        maximum=_scalar(block, "max"),
        values=tuple(value for value in block.get("value", []) if isinstance(value, str)),
    )


def _messages(message: Message, field: str) -> list[Message]:
    values = message.get(field, [])
    found = [value for value in values if not isinstance(value, str)]
    if len(found) != len(values):
        raise FormatError(f"quantisation proto: {field} is not a message")
    return found


def _scalar(message: Message, field: str) -> str | None:
    values = message.get(field, [])
    if not values:
        return None
    if not isinstance(values[0], str):
        raise FormatError(f"quantisation proto: {field} is not a number or a text")
    return values[0]


def _integer(message: Message, field: str) -> int | None:
    value = _scalar(message, field)
    return None if value is None else _whole(value, field)


def _whole(value: Scalar | Message, field: str) -> int:
    if not isinstance(value, str) or re.fullmatch(r"[-+]?\d{1,12}", value, re.ASCII) is None:
        raise FormatError(f"quantisation proto: {field} is not an integer")
    return int(value)


def _message(tokens: Iterator[tuple[str, str, int]], depth: int) -> Message:
    """Fields up to the closing brace (to the end of the text at depth 0)."""
    if depth > _DEEPEST:
        raise FormatError(f"quantisation proto: messages are nested deeper than {_DEEPEST}")
    fields: Message = {}
    for kind, token, line in tokens:
        if token == "}" and depth > 0:
            return fields
        if kind != "name":
            raise FormatError(f"quantisation proto: {token[:40]!r} where a field's name should be", line=line)
        fields.setdefault(token, []).append(_value(tokens, depth, line))
    if depth > 0:
        raise FormatError("quantisation proto: the text ends inside a message")
    return fields


def _value(tokens: Iterator[tuple[str, str, int]], depth: int, line: int) -> Scalar | Message:
    _, token, line = next(tokens, ("", "", line))
    if token == ":":
        kind, token, line = next(tokens, ("", "", line))
        if kind in ("name", "number"):
            return token
        if kind == "string":
            return _ESCAPE.sub(r"\1", token[1:-1])
    if token == "{":
        return _message(tokens, depth + 1)
    raise FormatError(f"quantisation proto: {token[:40]!r} where a value should be", line=line)


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    position, line = 0, 1
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or (match.lastgroup == "number" and len(match[0]) > _LONGEST_NUMBER):
            raise FormatError(f"quantisation proto: {text[position : position + 20]!r} can't be read", line=line)
        if match.lastgroup != "space":
            yield match.lastgroup or "", match[0], line
        line += match[0].count("\n")
        position = match.end()
