"""`*_tidl_net.bin.svg`: every layer of the compiled network with the scale, range and type of its outputs.

Source: a real AM62A compile of tools 10_00_08_00; graphviz puts the text of each node into `<title>` (and once more
into a comment), escaped and padded with no-break spaces. Releases before 9.x had four dimensions and no zero point.
Text without `<title>` that carries the same lines (html of 11.1 and later) is read too, as far as it keeps them.
"""

from __future__ import annotations

import html
import re

import msgspec

from tidegauge.tidl.errors import FormatError

_TITLE = re.compile(r"<title>(Layer [^<]*)</title>")
_HEAD = re.compile(r'Layer[ ]+(\d{1,9}):[ ]*(\w{1,100})[ ]*"([^"\n]{0,1024})"', re.ASCII)
_OUTPUT = re.compile(r"\[(\d{1,9})\][ ]+numDim=(\d{1,2})[ ]+dims=\[([\d,]{1,99})\][ ]+elementType=(\w{1,64})", re.ASCII)
_RANGE = re.compile(r"min/maxTensorValue=\(([^,()\n]{1,400}),([^,()\n]{1,400})\)")
_PAD = re.compile(r"padH/W=\[(\d{1,6}),(\d{1,6})\]", re.ASCII)
_PITCH = re.compile(r"pitch=\[([\d,]{1,120})\]", re.ASCII)
_SCALE = re.compile(r"tensorScale=(\S{1,400})")
_ZERO = re.compile(r"tensorZeroPoint=(-?\d{1,12})(?!\S)", re.ASCII)


class SvgOutput(msgspec.Struct, frozen=True):
    """One output of a layer. Dims: (batch, dim1, dim2, channels, height, width). Numbers as written; None if absent.

    `pad`: lines above and elements left of the data in the buffer; `pitch`: elements from one batch, dim1, dim2,
    channel and line to the next; empty where the text has none.
    """

    data_id: int
    dims: tuple[int, ...]
    element: str
    minimum: str | None
    maximum: str | None
    scale: str | None
    zero_point: int | None
    pad: tuple[int, int] = (0, 0)
    pitch: tuple[int, ...] = ()


class SvgLayer(msgspec.Struct, frozen=True):
    """One layer; a graph output has no `outputs`. The name is wrong there, as in layer_info."""

    number: int
    kind: str
    name: str
    outputs: tuple[SvgOutput, ...]


def parse(text: str) -> tuple[SvgLayer, ...]:
    """All layers in order of their number. Raises FormatError."""
    titles = _TITLE.findall(text)
    plain = html.unescape("\n".join(titles) if titles else text).replace("\xa0", " ")
    layers: dict[int, SvgLayer] = {}
    for number, layer in _layers(plain):
        # Without titles the same node can come twice, as comment and as text.
        if layers.setdefault(number, layer) != layer:
            raise FormatError(f"svg: layer {number} appears twice with different content")
    if not layers:
        raise FormatError("svg: there is no text of the form 'Layer 0: TIDL_… \"name\"'")
    return tuple(layers[number] for number in sorted(layers))


def _layers(text: str) -> list[tuple[int, SvgLayer]]:
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)][1:]
    return [
        (int(head[1]), SvgLayer(int(head[1]), head[2], head[3].strip(), _outputs(text[head.end() : end])))
        for head, end in zip(heads, ends, strict=True)
    ]


def _outputs(block: str) -> tuple[SvgOutput, ...]:
    found = list(_OUTPUT.finditer(block))
    ends = [*(output.start() for output in found), len(block)][1:]
    return tuple(_output(match, block[match.end() : end]) for match, end in zip(found, ends, strict=True))


def _output(match: re.Match[str], rest: str) -> SvgOutput:
    extent, scale, zero = _RANGE.search(rest), _SCALE.search(rest), _ZERO.search(rest)
    pad, pitch = _PAD.search(rest), _PITCH.search(rest)
    return SvgOutput(
        data_id=int(match[1]),
        dims=_dims(match[3]),
        element=match[4],
        minimum=extent[1] if extent else None,
        maximum=extent[2] if extent else None,
        scale=scale[1] if scale else None,
        zero_point=int(zero[1]) if zero else None,
        pad=(int(pad[1]), int(pad[2])) if pad else (0, 0),
        pitch=tuple(int(word) for word in pitch[1].split(",") if word) if pitch else (),
    )


def _dims(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if len(words) not in (4, 6) or not all(word.isdecimal() and len(word) <= 10 for word in words):
        raise FormatError(f"svg: dims=[{text[:60]}] are not six dimensions")
    values = tuple(int(word) for word in words)
    return values if len(values) == 6 else (values[0], 1, 1, *values[1:])
