"""Two releases: what changed in the compile, where the output moved, and whether the old proto may be read."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare import compare_releases, open_side, release_from_json, release_to_json
from tidegauge.compare.release_load import Side
from tidegauge.compare.release_types import ReleaseComparison
from tidegauge.errors import TidegaugeError
from tidegauge.evaluation.matching import unet
from tidegauge.evaluation.second_compile import make
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.options import CompileOptions
from unit.compare.lab import Board, build, picture


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("old") / "old", "enhancer")


def of(before: Path, after: Path) -> ReleaseComparison:
    with open_side(before) as one, open_side(after) as other:
        return compare_releases(one, other)


def again(old: Board, root: Path, **options: object) -> Board:
    frames = [{"input": picture(old.shape, seed)} for seed in range(4)]
    compile_model(old.model, root / "artifacts", frames, CompileOptions(calibration_frames=4, **options))  # type: ignore[arg-type]
    return Board(old.model, root / "artifacts", root, old.shape)


def test_the_same_compile_has_not_moved_and_the_proto_may_be_read(old: Board, tmp_path: Path) -> None:
    new = again(old, tmp_path)
    old.trace()
    new.trace()
    answer = of(old.root, new.root)
    assert answer.exit_code == 0 and answer.coverage == 1.0 and answer.same_input is True
    assert all(pair.difference is not None and pair.difference.exact for pair in answer.layers if pair.before_id)
    assert answer.proto.allowed and answer.proto.by == "netLog"
    assert "same bit by bit" in answer.sentence and "may be read" in answer.sentence
    assert release_from_json(release_to_json(answer)) == answer


def test_a_fault_in_one_layer_begins_there(old: Board, tmp_path: Path) -> None:
    new = again(old, tmp_path)
    old.trace()
    new.trace([Fault("/dec/c3/Relu_output_0", "gain", 1.3)])
    answer = of(old.root, new.root)
    begins = [pair.after_name for pair in answer.layers if pair.difference is not None and pair.difference.begins]
    assert answer.exit_code == 1 and begins == ["/dec/c3/Relu_output_0"]
    assert answer.outputs[0].name == "enhanced" and answer.outputs[0].begins == ("/dec/c3/Relu_output_0",)
    assert "beginning at /dec/c3/Relu_output_0" in answer.sentence


def test_other_bits_are_told_as_type_and_scale(old: Board, tmp_path: Path) -> None:
    new = again(old, tmp_path, output_feature_16bit_names_list=("/dec/c3/Relu_output_0",))
    answer = of(old.root / "artifacts", new.root / "artifacts")
    changed = {pair.after_name: pair.changes for pair in answer.layers if pair.changes}
    assert changed == {"/dec/c3/Relu_output_0": ("type", "scale")}
    assert answer.exit_code == 0 and "values are not" in answer.notes[-1]  # two compiles, no traces


def test_other_numbers_fusing_and_names_are_told_and_forbid_the_proto(tmp_path: Path) -> None:
    model = unet(tmp_path / "net.onnx")
    sides = []
    feeds = {"input": picture((1, 3, 40, 56), 5)}
    for place, (naming, split) in enumerate((("kept", 0.0), ("prefix", 1.0))):
        made = make(
            model,
            tmp_path / str(place),
            np.random.default_rng(place),
            naming="kept" if naming == "kept" else "prefix",
            split=split,
            feeds=feeds,
        )
        sides.append(Side(naming, {"subgraph_0": made.subgraph}, made.tensors))
    answer = compare_releases(*sides)
    changes = {change for pair in answer.layers for change in pair.changes}
    assert {"number", "name", "fusing"} <= changes and answer.coverage == 1.0
    layer = next(pair for pair in answer.layers if pair.after_name == "/export/body/e1")
    assert layer.before_name == "e1" and "fusing" in layer.changes and layer.difference is not None
    fresh = {a.name: a.reason for a in answer.alone if a.side == "after"}
    assert re.fullmatch(r"fused into e1 before", fresh["/export/body/e1_conv"])
    assert answer.same_input is True and answer.exit_code == 0
    assert not answer.proto.allowed and answer.proto.differences and "may not be read" in answer.sentence


def test_different_inputs_are_said(old: Board, tmp_path: Path) -> None:
    new = again(old, tmp_path)
    old.trace()
    new.trace(value=picture(old.shape, 77))
    answer = of(old.root, new.root)
    assert answer.same_input is False and "fed different inputs" in answer.sentence


def test_two_networks_that_share_nothing_are_no_verdict(old: Board, tmp_path: Path) -> None:
    other = build(tmp_path / "other", "segmenter")
    answer = of(old.artifacts, other.artifacts)
    assert answer.exit_code == 3 and answer.sentence.startswith("Only ") and not answer.proto.allowed


def test_a_folder_without_tables_is_unusable(tmp_path: Path) -> None:
    with pytest.raises(TidegaugeError, match="tempDir"), open_side(tmp_path):
        pass


def test_a_proto_is_not_read_without_symmetric_scales_or_without_one(old: Board, tmp_path: Path) -> None:
    new = again(old, tmp_path)
    for file in (old.artifacts / "tempDir").glob("*.prototxt"):
        held = file.read_text()
        file.unlink()
        try:
            answer = of(old.artifacts, new.artifacts)
        finally:
            file.write_text(held)
        assert not answer.proto.allowed and "there is none beside" in answer.proto.sentence
    with open_side(old.artifacts) as one, open_side(new.artifacts) as other:
        row = one.subgraphs["subgraph_0"].table[1]
        import msgspec

        one.subgraphs["subgraph_0"].table = (msgspec.structs.replace(row, zero_point=3),)
        assert "not symmetric" in compare_releases(one, other).proto.sentence
