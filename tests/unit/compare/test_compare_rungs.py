"""Four rungs: between which the error enters, what a missing one leaves undecided; float networks; baselines."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from tidegauge.compare import Comparison, Source, compare, compare_rungs, from_json, open_source, other_run, to_json
from tidegauge.compare.baseline import baseline_from_json, baseline_to_json, learn
from tidegauge.compare.report.html import render_html
from tidegauge.compare.rungs import Seen, decide
from tidegauge.errors import TidegaugeError
from tidegauge.tidl.trace_names import TraceName, format_name
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_artifacts
from unit.compare.lab import Board, build, picture


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    return build(tmp_path_factory.mktemp("board"), "segmenter")


def host(board: Board, folder: Path, faults: tuple[Fault, ...] = ()) -> Path:
    folder.mkdir()
    for file in board.trace(faults, name="for_host").glob("C7x_1_*"):
        shutil.copy(file, folder / file.name.removeprefix("C7x_1_"))
    return folder


def floats(board: Board, folder: Path, wrong: str = "") -> Path:
    """Every layer's output in float, as the emulation of a 32-bit compile dumps it; `wrong`: its weights are turned."""
    folder.mkdir()
    model = onnx.load(board.model)
    if wrong:
        weight = next(node.input[1] for node in model.graph.node if node.output[0].startswith(wrong))
        found = next(w for w in model.graph.initializer if w.name == weight)
        found.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(found)[:, ::-1].copy(), weight))
    layers = load_artifacts(board.artifacts).tensors()
    made = {name for node in model.graph.node for name in node.output}
    model = onnx.shape_inference.infer_shapes(model)
    outputs = {o.name for o in model.graph.output}
    model.graph.output.extend(v for v in model.graph.value_info if v.name in made - outputs)
    names = [o.name for o in model.graph.output]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(names, session.run(names, {"input": picture(board.shape, 3)}), strict=True))
    for layer in layers:
        name = layer.name.removesuffix("_original")
        if name in values:
            file = format_name(TraceName(None, "subgraph_0", layer.data_id, layer.dims, "float"))
            (folder / file).write_bytes(values[name].astype("<f4").tobytes())
    return folder


def climb(board: Board, device: Path, pc: Path | None = None, pc32: Path | None = None) -> Comparison:
    inputs = [str(device / "input.npy")]
    with open_source(device, model=board.model, tempdir=board.artifacts, inputs=inputs) as source:
        sides: list[Source | None] = [other_run(source, f) if f is not None else None for f in (pc, pc32)]
        return compare_rungs(source, *sides, min_coverage=0.7)


def states(answer: Comparison) -> dict[str, str]:
    assert answer.rungs is not None
    return {step.stage: step.state for step in answer.rungs.steps}


def test_four_healthy_rungs_are_clean(board: Board, tmp_path: Path) -> None:
    answer = climb(board, board.trace(), host(board, tmp_path / "pc"), floats(board, tmp_path / "pc32"))
    assert set(states(answer).values()) == {"clean"} and answer.exit_code == 0
    assert answer.rungs is not None and answer.rungs.sentence == "No error enters at any rung."
    assert answer.exact is not None and answer.exact.exit_code == 0
    assert from_json(to_json(answer)) == answer


def test_each_fault_enters_at_its_own_rung(board: Board, tmp_path: Path) -> None:
    fault = (Fault("e2", "gain"),)
    pc, pc32 = host(board, tmp_path / "pc"), floats(board, tmp_path / "pc32")
    bad_pc = host(board, tmp_path / "bad_pc", fault)

    on_device = climb(board, board.trace(fault, name="evm"), pc, pc32)
    assert on_device.rungs is not None and on_device.rungs.enters == ("device",) and on_device.exit_code == 1
    assert on_device.rungs.steps[3].layers == ("e2",) and "on the device only (e2)" in on_device.rungs.sentence
    assert "four rungs" in render_html(on_device) and "bit by bit" in render_html(on_device)

    quantised = climb(board, board.trace(fault, name="evm"), bad_pc, pc32)
    assert quantised.rungs is not None and quantised.rungs.enters == ("quantisation",)
    assert quantised.rungs.steps[2].layers == ("e2",) and quantised.exact is not None and quantised.exact.exit_code == 0

    imported = climb(board, board.trace(name="evm"), pc, floats(board, tmp_path / "bad_pc32", wrong="mid"))
    assert imported.rungs is not None and imported.rungs.enters == ("import",) and imported.exit_code == 1
    assert imported.rungs.steps[1].layers == ("mid",)


def test_a_missing_rung_is_named_with_what_it_leaves_undecided(board: Board, tmp_path: Path) -> None:
    fault = (Fault("e2", "gain"),)
    device = board.trace(fault, name="evm")
    without_float = climb(board, device, host(board, tmp_path / "bad_pc", fault))
    assert states(without_float) == {
        "input": "clean",
        "import": "undecided",
        "quantisation": "undecided",
        "device": "clean",
    }
    assert without_float.rungs is not None and "tensor_bits=32" in without_float.rungs.steps[2].sentence
    without_host = climb(board, device, None, floats(board, tmp_path / "pc32"))
    assert states(without_host) == {
        "input": "clean",
        "import": "clean",
        "quantisation": "undecided",
        "device": "undecided",
    }
    assert without_host.rungs is not None and "--host" in without_host.rungs.steps[3].sentence
    assert "undecided: e2" in without_host.rungs.sentence


def test_different_inputs_are_no_fault_of_the_device(board: Board, tmp_path: Path) -> None:
    device = board.trace(value=picture(board.shape, 5), name="evm")
    answer = climb(board, device, host(board, tmp_path / "pc"))
    assert states(answer)["input"] == "error" and states(answer)["device"] == "undecided"
    assert answer.rungs is not None and "fed different inputs" in answer.rungs.steps[0].sentence
    assert answer.exact is not None and "they were fed different inputs" in answer.exact.sentence
    assert "whose inputs are equal" not in answer.exact.sentence


def test_a_float_network_becomes_the_second_rung_wherever_it_is_given(board: Board, tmp_path: Path) -> None:
    device, pc32 = board.trace(), floats(board, tmp_path / "pc32")
    as_host = climb(board, device, pc32)
    assert as_host.rungs is not None and [r.source is not None for r in as_host.rungs.rungs] == [True, False, True]
    assert as_host.exact is None and "tensor_bits 32" in as_host.rungs.notes[0] and as_host.exit_code == 0
    np.save(pc32 / "input.npy", np.load(device / "input.npy"))
    as_device = climb(board, pc32, host(board, tmp_path / "pc"))
    assert states(as_device)["import"] == "clean" and as_device.exact is None
    assert {f.kind for f in as_device.findings} >= {"float_network"}
    alone = climb(board, pc32)
    assert alone.cure is None, "an output without an error needs no cure"
    assert alone.rungs is not None
    (climbed,) = [rung for rung in alone.rungs.rungs if rung.source is not None]
    assert set(climbed.exact) == {name for name, sqnr in climbed.outputs.items() if sqnr is None}
    with pytest.raises(TidegaugeError, match="both of a network compiled as float"):
        climb(board, device, pc32, pc32)
    with pytest.raises(TidegaugeError, match="not of a network compiled as float"):
        climb(board, device, None, host(board, tmp_path / "pc_again"))


def test_codes_that_were_dumped_as_floats_are_codes_again(board: Board, tmp_path: Path) -> None:
    device = board.trace([Fault("e2", "gain")])
    codes = climb(board, device)
    folder = tmp_path / "floats"
    folder.mkdir()
    for layer in load_artifacts(board.artifacts).tensors():
        if layer.quant.is_float:
            shutil.copy(board.trace_of(device, layer.name), folder)
            continue
        values = layer.quant.values(np.fromfile(board.trace_of(device, layer.name), layer.quant.dtype))
        name = format_name(TraceName("C7x_1", "subgraph_0", layer.data_id, layer.dims, "float"))
        (folder / name).write_bytes(values.astype("<f4").tobytes())
    shutil.copy(device / "input.npy", folder)
    again = climb(board, folder)
    plain = board.compare_folder(folder)
    assert [layer.excess for layer in plain.layers] == [layer.excess for layer in codes.layers]
    assert again.culprits[0].layer == "e2" and [c.layer for c in again.culprits] == [c.layer for c in codes.culprits]
    assert [layer.excess for layer in again.layers] == [layer.excess for layer in codes.layers]


def test_a_ladder_of_nothing_decides_nothing() -> None:
    answer = decide(None, None, None, None)
    assert {step.state for step in answer.steps} == {"undecided"} and not answer.enters


def test_poor_output_without_a_culprit_is_quantisation_once_the_import_is_clean() -> None:
    clean = Seen("a", (), "", True, True, False, {})
    diffuse = msgspec.structs.replace(clean, diffuse=True)
    assert decide(clean, diffuse, None, None).enters == ("quantisation",)
    thin = decide(
        msgspec.structs.replace(clean, enough=False), msgspec.structs.replace(clean, culprits=("x",)), None, None
    )
    assert thin.enters == () and "too little" in thin.steps[1].sentence


# --- baseline ----------------------------------------------------------------------------------------------------


def test_a_baseline_finds_what_the_default_factor_lets_pass_and_spares_what_is_healthy(board: Board) -> None:
    healthy = board.compare()
    sha = "0" * 64
    learned = learn(healthy, sha)
    assert learned.runs == 1 and len(learned.layers) >= 10
    widened = learn(board.compare(value=picture(board.shape, 8)), sha, learned)
    assert widened.runs == 2 and all(widened.layers[name] >= value for name, value in learned.layers.items())
    assert baseline_from_json(baseline_to_json(widened), "b") == widened

    folder = board.trace([Fault("mid", "gain", 1.02)])
    with open_source(folder, model=board.model, tempdir=board.artifacts, inputs=[str(folder / "input.npy")]) as source:
        own = msgspec.structs.replace(widened, model_sha256=hashlib.sha256(source.model).hexdigest())
        default, strict = compare(source), compare(source, baseline=own)
        spared = compare(source, baseline=learn(default, own.model_sha256, own))
        with pytest.raises(TidegaugeError, match="another model"):
            compare(source, baseline=widened)
    limits = [next(x for x in answer.layers if x.name == "mid").limit for answer in (default, strict, spared)]
    assert limits[0] is None and limits[1] == 3.0 and limits[2] is not None and limits[2] > 20
    assert [c.layer for c in (*strict.culprits, *strict.recovered)] == ["mid"]
    assert {layer.verdict for layer in spared.layers} == {"healthy"}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"model_sha256":"a","runs":0,"layers":{}}', b"\xff"])
def test_what_is_no_baseline_is_refused(text: bytes) -> None:
    with pytest.raises(TidegaugeError, match="no baseline"):
        baseline_from_json(text, "x.json")


def test_no_baseline_from_too_few_layers_or_another_model(board: Board) -> None:
    healthy = board.compare()
    with pytest.raises(TidegaugeError, match="too few"):
        learn(msgspec.structs.replace(healthy, exit_code=3), "a")
    with pytest.raises(TidegaugeError, match="another model"):
        learn(healthy, "b", learn(healthy, "a"))
