"""The JSON comes back as it went; the page is one file, escaped, and needs no network."""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator
from io import StringIO
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from tidegauge.compare import Comparison, from_json, to_json
from tidegauge.compare.pictures import png
from tidegauge.compare.report import print_comparison, render_html
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    board: Board = build(tmp_path_factory.mktemp("board"), "enhancer")
    return board.compare([Fault("/enc/c2/Relu_output_0", "band"), Fault("/Sub_0_output_0", "gain", 1.4)])


def test_json_round_trip(answer: Comparison) -> None:
    assert from_json(to_json(answer)) == answer
    assert all(math.isfinite(number) for number in numbers(msgspec.to_builtins(answer)))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from (n for item in value.values() for n in numbers(item))
    elif isinstance(value, list | tuple):
        yield from (n for item in value for n in numbers(item))


def test_json_of_something_else_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        from_json(b'{"tool": 1}')


def test_the_page_says_culprit_cause_and_advice(answer: Comparison) -> None:
    page = render_html(answer)
    worst = answer.culprits[0]
    assert worst.layer in page and worst.detail in page
    assert "deny_list:layer_name" in page
    assert page.count("data:image/png") == sum(len(culprit.pictures) for culprit in answer.culprits) >= 8
    assert all(layer.name in page for layer in answer.layers)


def test_the_page_is_one_small_file_without_network(answer: Comparison) -> None:
    page = render_html(answer)
    assert len(page) < 1_500_000
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page)
    assert "http://" not in page and "https://" not in page
    assert "default-src 'none'" in page


def test_hostile_names_are_escaped(answer: Comparison) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    layers = tuple(msgspec.structs.replace(layer, name=evil, reason=evil) for layer in answer.layers)
    culprits = tuple(msgspec.structs.replace(c, layer=evil, sentence=evil, detail=evil) for c in answer.culprits)
    subject = msgspec.structs.replace(answer.subject, device=evil, model=evil, hashes={evil: evil}, virtual=True)
    page = render_html(
        msgspec.structs.replace(answer, layers=layers, culprits=culprits, subject=subject, sentence=evil)
    )
    assert "<script>alert" not in page and "<img src=x" not in page
    assert page.count("</script>") == 2
    assert "VIRTUAL" in page


def test_the_terminal_shows_the_same(answer: Comparison) -> None:
    out = StringIO()
    print_comparison(answer, Console(file=out, width=180))
    text = out.getvalue()
    assert text.startswith("CULPRIT FOUND") and answer.culprits[0].layer in text and "deny_list:layer_name" in text
    assert " ".join(text.split()).count(answer.culprits[0].sentence) == 1, "the first culprit is told once"
    assert answer.culprits[0].advice[0].what_if is not None and "dB (now " in text


def test_png_bytes_decode_to_the_picture() -> None:
    rgb = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)
    data = png(rgb)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    assert (width, height, depth, colour) == (4, 5, 8, 2)
    size = struct.unpack(">I", data[33:37])[0]
    rows = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(5, 13)
    assert (rows[:, 0] == 0).all() and (rows[:, 1:].reshape(5, 4, 3) == rgb).all()
