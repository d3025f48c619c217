"""A stored answer is judged again from its sums; frames are merged by theirs."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import jsonschema_rs
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.compare import (
    Comparison,
    compare,
    compare_folders,
    compare_releases,
    exact_to_json,
    from_json,
    merge_frames,
    open_side,
    rejudge,
    release_to_json,
    to_json,
)
from tidegauge.compare.schema import SCHEMAS, schema
from tidegauge.compare.statistics import Encoding, measure, metrics, noise_floor
from tidegauge.compare.stored import merged, restore, store
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.faults import Fault
from unit.compare.lab import Board, build, picture

LAYER = "/dec/c3/Relu_output_0"


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "enhancer")


@pytest.fixture(scope="module")
def faulty(board: Board) -> Comparison:
    return from_json(to_json(board.compare([Fault(LAYER, "gain", 1.2)])))


def test_one_call_of_the_library(board: Board) -> None:
    report = compare(board.trace([Fault(LAYER, "gain", 1.2)]), model=board.model, tempdir=board.artifacts)
    assert report.culprits[0].layer == LAYER


def test_a_higher_threshold_lets_the_culprit_go_and_the_old_one_brings_it_back(faulty: Comparison) -> None:
    excess = faulty.culprits[0].excess
    assert excess is not None
    lenient = rejudge(faulty, threshold=2 * excess)
    assert lenient.exit_code == 0 and lenient.culprits == () and lenient.cure is None
    assert all(layer.verdict != "inherits" for layer in lenient.layers)
    again = rejudge(lenient, threshold=excess / 2)
    assert again.exit_code == 1 and [c.layer for c in again.culprits] == [LAYER]
    assert "stored sums" in again.culprits[0].sentence and again.culprits[0].cause == "unknown"
    assert {x.name for x in again.layers if x.verdict == "inherits"} >= {"/dec/c4/Conv_output_0", "enhanced"}
    assert rejudge(faulty, threshold=faulty.threshold).culprits == faulty.culprits


def test_the_same_threshold_names_the_same_layers_from_sums_as_from_tensors(board: Board) -> None:
    folder = board.trace([Fault(LAYER, "gain", 1.02)])
    stored = rejudge(board.compare_folder(folder), threshold=1.5)
    fresh = board.compare_folder(folder, threshold=1.5)
    wrong = {c.layer for c in (*stored.culprits, *stored.recovered)}
    assert wrong == {c.layer for c in (*fresh.culprits, *fresh.recovered)}
    assert LAYER in wrong and len(wrong) > 1
    assert stored.threshold == fresh.threshold == 1.5


def test_what_is_wrong_by_its_codes_stays_so_at_any_threshold(board: Board) -> None:
    answer = board.compare([Fault("/dec/Concat_output_0", "one_channel", 0.0)])
    named = (*answer.culprits, *answer.recovered)
    assert [c.layer for c in named] == ["/dec/Concat_output_0"] and (named[0].excess or 0.0) < answer.threshold
    lenient = rejudge(answer, threshold=1e9)
    assert (*lenient.culprits, *lenient.recovered) == named


def test_coverage_is_judged_again_and_wins(faulty: Comparison) -> None:
    coverage = msgspec.structs.replace(faulty.coverage, compared=9, share=0.5)
    thin = msgspec.structs.replace(faulty, coverage=coverage)
    assert rejudge(thin, min_coverage=0.9).exit_code == 3
    assert rejudge(thin, min_coverage=0.4).exit_code == 1


def test_an_answer_without_sums_says_so(faulty: Comparison) -> None:
    bare = msgspec.structs.replace(
        faulty, layers=tuple(msgspec.structs.replace(layer, sums=None) for layer in faulty.layers)
    )
    with pytest.raises(TidegaugeError, match="no sums"):
        rejudge(bare, threshold=5.0)


def test_the_stored_sums_give_the_stored_numbers(faulty: Comparison) -> None:
    for layer in faulty.layers:
        assert layer.sums is not None and layer.sums.local is not None and layer.local is not None
        assert layer.dtype is not None and layer.scale is not None and layer.zero_point is not None
        encoding = Encoding(layer.dtype, layer.scale, layer.zero_point)
        assert metrics(restore(layer.sums.local), encoding, layer.sums.floor) == layer.local
        assert sum(layer.sums.local.channels) == pytest.approx(layer.sums.local.d2, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(-50, 50), st.integers(1, 200), st.integers(1, 200))
def test_merged_sums_are_the_sums_of_both(seed: int, offset: float, rows: int, more: int) -> None:
    random = np.random.default_rng(seed)
    encoding = Encoding("int8", 20.0, 3)
    values = [random.normal(offset * k, 1 + k, (2, n, 5)).astype(np.float32) for k, n in ((0, rows), (1, more))]
    codes = [random.integers(-128, 128, value.shape).astype(np.int8) for value in values]
    parts = [store(measure(c, v, encoding)) for c, v in zip(codes, values, strict=True)]
    both = merged(parts[0], parts[1])
    whole = measure(np.concatenate(codes, 1), np.concatenate(values, 1), encoding)
    assert both is not None and both.count == whole.count and both.max_d == whole.max_d
    floor = noise_floor(encoding, 1.0)
    ours, theirs = metrics(restore(both), encoding, floor), metrics(whole, encoding, floor)
    for name in ("sqnr_db", "cosine", "gain", "offset", "mse", "bias_steps", "excess"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None)
        assert one is None or math.isclose(one, other, rel_tol=2e-3, abs_tol=2e-3), name


def frames(board: Board, faults: list[list[Fault]]) -> list[Comparison]:
    return [board.compare(given, picture(board.shape, 40 + i)) for i, given in enumerate(faults)]


def test_frames_keep_the_worst_and_count_how_often_a_layer_is_wrong(board: Board) -> None:
    answers = frames(board, [[], [Fault(LAYER, "gain", 1.1)], [Fault(LAYER, "gain", 1.4)]])
    answer = merge_frames(answers)
    assert answer.frames is not None and answer.frames.worst == 2 and answer.exit_code == 1
    told = answer.frames.layers[LAYER]
    assert (told.compared, told.flagged, told.worst, told.first_only) == (3, 2, 2, False)
    assert answer.frames.layers["/enc/c1/Relu_output_0"].flagged == 0
    assert answer.culprits[0].layer == LAYER and "(in 2 of 3 frames)" in answer.culprits[0].sentence
    assert answer.culprits[0].cause == answers[2].culprits[0].cause
    layer = next(x for x in answer.layers if x.name == LAYER)
    each = [next(x for x in a.layers if x.name == LAYER) for a in answers]
    assert layer.local is not None and layer.local.count == sum(x.local.count for x in each if x.local is not None)
    mean = sum((x.local.mse or 0.0) for x in each if x.local is not None) / 3
    assert layer.local.mse == pytest.approx(mean, rel=1e-6)
    assert from_json(to_json(answer)) == answer


def test_a_fault_of_the_first_frame_alone_is_said_to_be_that(board: Board) -> None:
    answer = merge_frames(frames(board, [[Fault(LAYER, "band")], [], []]))
    assert answer.frames is not None and answer.frames.layers[LAYER].first_only
    assert any(f.kind == "first_frame_only" and f.layer == LAYER for f in answer.findings)
    again = merge_frames(frames(board, [[Fault(LAYER, "band")], [], [Fault(LAYER, "band")]]))
    assert again.frames is not None and not again.frames.layers[LAYER].first_only
    two = merge_frames(frames(board, [[Fault(LAYER, "band")], []]))  # one other frame proves nothing
    assert two.frames is not None and not two.frames.layers[LAYER].first_only
    later = merge_frames(frames(board, [[], [Fault(LAYER, "band")], []]))
    assert later.frames is not None and not later.frames.layers[LAYER].first_only


def test_a_frame_of_another_compile_is_refused(board: Board, tmp_path: Path) -> None:
    other = build(tmp_path / "other", "segmenter")
    with pytest.raises(TidegaugeError, match="one compile"):
        merge_frames([board.compare(), other.compare()])


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_published_schemas_are_those_of_the_types(name: str) -> None:
    published = Path(__file__).parents[3] / "docs" / "schemas" / name
    assert published.read_bytes() == schema(name), "renew them with: python -m tidegauge.compare.schema"


def test_answers_are_valid_by_the_published_schemas(board: Board, tmp_path: Path) -> None:
    """What a consumer reads: a culprit, several frames, bit by bit, and two releases."""
    bad, good = board.trace([Fault(LAYER, "band")], name="bad"), board.trace(name="good")
    frames = compare([bad, good], model=board.model, tempdir=board.artifacts)
    with open_side(board.artifacts) as before, open_side(board.artifacts) as after:
        release = compare_releases(before, after)
    host = tmp_path / "pc"
    host.mkdir()
    for file in good.glob("C7x_1_*"):
        shutil.copy(file, host / file.name.removeprefix("C7x_1_"))
    answers = {
        "comparison.schema.json": to_json(frames),
        "exact.schema.json": exact_to_json(compare_folders(host, bad, board.artifacts)),
        "release.schema.json": release_to_json(release),
    }
    assert answers.keys() == SCHEMAS.keys() and frames.culprits and frames.frames is not None
    for name, data in answers.items():
        published = json.loads((Path(__file__).parents[3] / "docs" / "schemas" / name).read_bytes())
        errors = list(jsonschema_rs.validator_for(published).iter_errors(json.loads(data)))
        assert not errors, f"{name}: {errors[0].message}"
        assert json.loads(data)["schema"] >= 1
        broken = json.loads(data) | {"exit_code": 7}
        assert not jsonschema_rs.validator_for(published).is_valid(broken)
