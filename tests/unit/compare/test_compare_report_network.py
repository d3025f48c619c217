"""The report's drawing of the network, the gains of a cure, histograms with the code grid, and the scatter."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.compare import Comparison
from tidegauge.compare.causes import evidence
from tidegauge.compare.pictures import draw
from tidegauge.compare.report import render_html
from tidegauge.compare.report.figures import gains, histogram
from tidegauge.compare.report.network import arrange, edges, fold
from tidegauge.compare.statistics import Encoding
from tidegauge.compare.types import Cure, CureStep, Histogram, WhatIf
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import build


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    board = build(tmp_path_factory.mktemp("network"), "classifier")
    return board.compare([Fault("bn", "gain", 1.5)], target_db=30.0)


@st.composite
def graphs(draw_: st.DrawFn) -> dict[int, tuple[int, ...]]:
    count = draw_(st.integers(1, 30))
    return {
        node: tuple(draw_(st.lists(st.integers(0, node - 1), max_size=3, unique=True))) if node else ()
        for node in range(count)
    }


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_every_layer_has_a_place_of_its_own_below_all_that_it_reads(graph: dict[int, tuple[int, ...]]) -> None:
    place = arrange(graph)
    assert set(place) == set(graph) and len(set(place.values())) == len(place)
    for node, sources in graph.items():
        assert all(place[source][1] < place[node][1] for source in sources)


def test_a_chain_is_a_straight_line_and_a_branch_stands_beside_it() -> None:
    assert {lane for lane, _ in arrange({0: (), 1: (0,), 2: (1,), 3: (2,)}).values()} == {0}
    skip = arrange({0: (), 1: (0,), 2: (1,), 3: (2, 0)})
    assert skip[3] == (0, 3)
    assert arrange({0: (), 1: (0,), 2: (0,), 3: (1, 2)})[1][0] != arrange({0: (), 1: (0,), 2: (0,), 3: (1, 2)})[2][0]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 6))
def test_a_deep_network_is_folded_so_that_all_of_it_can_be_seen(ranks: int, lanes: int) -> None:
    place = {rank * lanes + lane: (lane, rank) for rank in range(ranks) for lane in range(lanes)}
    corners = fold(place)
    assert len(set(corners.values())) == len(place), "no two layers share a place"
    wide = max(x for x, _ in corners.values()) + 200
    high = max(y for _, y in corners.values()) + 60
    assert ranks <= 40 or high < 3 * wide, "a frame that is wider than high shows it as more than a line"
    for rank in range(1, ranks):
        (x, y), (u, v) = corners[(rank - 1) * lanes], corners[rank * lanes]
        assert (u == x and v > y) or u > x, "read downwards, then to the right"


def test_the_drawing_has_the_networks_branches(answer: Comparison) -> None:
    index = {layer.name: layer.index for layer in answer.layers}
    read = edges([layer for layer in answer.layers if layer.tensor is not None and layer.operators])
    assert set(read[index["se_scale"]]) == {index["bn"], index["se_sig"]}
    assert set(read[index["out"]]) == {index["se_scale"], index["stem"]}
    page = render_html(answer)
    assert len(re.findall(r'<g class="node ', page)) == len(read)
    assert len(re.findall(r'<path class="edge"', page)) == sum(len(sources) for sources in read.values())
    assert len(re.findall(r'<g class="node n-faulty"', page)) == len(answer.culprits)


def test_the_page_can_be_filtered_and_says_what_to_paste(answer: Comparison) -> None:
    page = render_html(answer)
    assert page.count("data-verdict=") == len(answer.layers)
    assert 'id="filter"' in page and 'id="only"' in page
    assert answer.cure is not None and 'data-copy="cure"' in page
    for item in answer.cure.advice:
        assert item.option in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page


def test_gains_are_drawn_step_by_step() -> None:
    figures = [WhatIf("o", 10 ** (-db / 20), db) for db in (10.0, 22.0, 31.0)]
    steps = tuple(CureStep(name, "wide", figure) for name, figure in zip("ab", figures[1:], strict=True))
    drawing = gains(Cure(30.0, True, figures[0], figures[2], steps, (), True))
    assert drawing.count('class="dot"') == 3 and 'class="limit"' in drawing
    heights = [float(y) for y in re.findall(r'class="dot" cx="[\d.]+" cy="([\d.]+)"', drawing)]
    assert heights == sorted(heights, reverse=True)


def test_a_histogram_has_a_tick_for_each_code_where_they_can_be_told_apart(answer: Comparison) -> None:
    layer = next(layer for layer in answer.layers if layer.dtype == "uint8")
    few = msgspec.structs.replace(layer, scale=10.0, zero_point=0, histogram=Histogram(0.0, 1.0, (1, 0, 3), (2, 2, 0)))
    assert re.search(r'class="h-grid" d="([^"]*)"', histogram(few)).group(1).count("M") == 11  # type: ignore[union-attr]
    many = msgspec.structs.replace(few, scale=1000.0)
    assert "h-grid" not in histogram(many) and "1000 codes" in histogram(many)


def test_a_scatter_tells_gain_and_offset() -> None:
    random = np.random.default_rng(0)
    local = random.uniform(0, 1, (4, 1, 1)).astype(np.float32)
    encoding = Encoding("uint8", 100.0)
    codes = encoding.codes(local * 1.5 + 0.2).astype(np.uint8)
    (picture,) = draw(evidence(codes, local, encoding, encoding.step**2 / 12))
    assert picture.kind == "scatter" and picture.png.startswith(b"\x89PNG")
    gain, offset = (float(x) for x in re.findall(r"(?:gain|offset) (-?[\d.]+)", picture.label))
    assert gain == pytest.approx(1.5, abs=0.05) and offset == pytest.approx(0.2, abs=0.03)


def test_pictures_show_the_worst_channels_and_none_that_is_right() -> None:
    random = np.random.default_rng(0)
    local = random.uniform(0, 1, (6, 20, 30)).astype(np.float32)
    encoding = Encoding("uint8", 255.0)
    codes = encoding.codes(local).astype(np.uint8)
    for channel, shift in ((4, 60), (1, 40), (2, 30), (5, 20)):
        codes[channel] = np.minimum(codes[channel].astype(int) + shift, 255)
    found = [p for p in draw(evidence(codes, local, encoding, encoding.step**2 / 12)) if p.kind != "scatter"]
    assert [p.channel for p in found] == [4] * 3 + [1] * 3 + [2] * 3
    assert [p.kind for p in found[:3]] == ["device", "reference", "difference"]
    codes = encoding.codes(local).astype(np.uint8)
    codes[3, 5:9] = 255
    alone = draw(evidence(codes, local, encoding, encoding.step**2 / 12))
    assert {p.channel for p in alone if p.kind != "scatter"} == {3}, "five right channels say nothing"


def test_the_page_of_a_comparison_read_from_json_is_the_same(answer: Comparison, tmp_path: Path) -> None:
    from tidegauge.compare import from_json, to_json

    assert render_html(from_json(to_json(answer))) == render_html(answer)
