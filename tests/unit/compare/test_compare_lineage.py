"""Layers are found again across renumbering, other fusing and renamed prefixes; a wrong pair is worse than none."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tidegauge.compare import compare
from tidegauge.compare.compiled import WeightScales
from tidegauge.compare.evidence import weight_score
from tidegauge.compare.fingerprints import Node, contract, pair
from tidegauge.compare.lineage import align, common_rename, renamed
from tidegauge.compare.match import match_tensors
from tidegauge.compare.model import load_model
from tidegauge.compare.pairing import _from_the_end
from tidegauge.evaluation.matching import CASES, Count, one, twins, unet
from tidegauge.evaluation.second_compile import make
from tidegauge.virtualboard.compiler import compile_model
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import Fault
from tidegauge.virtualboard.network import load_all
from tidegauge.virtualboard.options import CompileOptions
from tidegauge.virtualboard.tracing import content, file_name, kinds
from unit.compare.lab import enhancer, picture


@pytest.mark.parametrize("build", [twins, unet], ids=["twins", "unet"])
def test_two_compiles_of_one_model_are_matched_right_and_none_wrong(build: object, tmp_path: Path) -> None:
    """The evaluation, scaled down: `tidegauge evaluate matching` has five networks and twenty draws."""
    model = (twins if build is twins else unet)(tmp_path / "net.onnx")
    random = np.random.default_rng(4)
    for case in CASES:
        counts, hows = (Count(), Count()), Counter[str]()
        for draw in range(2):
            one(model, tmp_path / f"{CASES.index(case)}_{draw}", case, random, counts, hows)
        for count in counts:
            assert count.wrong == 0, case
            assert count.total > 15 and (not case.goal or count.right == count.total), (case, count)


def test_a_fused_layer_is_its_last_tensor_and_its_parts_are_found_where_it_is_not_fused(tmp_path: Path) -> None:
    model = unet(tmp_path / "net.onnx")
    compiled = make(model, tmp_path / "c", np.random.default_rng(0), naming="prefix", split=0.0)
    loaded = load_model(model.read_bytes(), "net.onnx")
    found = match_tensors(loaded, compiled.tensors, {"subgraph_0": compiled.subgraph}).found
    tensors = {f.tensor for f in found}
    assert "e1" in tensors and "e1_conv" not in tensors and "e1_bn" not in tensors
    apart = make(model, tmp_path / "d", np.random.default_rng(0), naming="prefix", split=1.0)
    found = match_tensors(load_model(model.read_bytes(), "n"), apart.tensors, {"subgraph_0": apart.subgraph}).found
    assert {"e1", "e1_conv", "e1_bn"} <= {f.tensor for f in found}


def test_what_only_values_could_tell_stays_unmatched_without_them(tmp_path: Path) -> None:
    model = twins(tmp_path / "net.onnx")
    compiled = make(model, tmp_path / "c", np.random.default_rng(1), naming="numbers", split=0.0)
    found = match_tensors(
        load_model(model.read_bytes(), "net.onnx"), compiled.tensors, {"subgraph_0": compiled.subgraph}
    ).found
    by_truth = {compiled.truth[t.data_id]: f for t, f in zip(compiled.tensors, found, strict=True)}
    assert by_truth["/left/0/Relu_output_0"].tensor is None and by_truth["/right/0/Relu_output_0"].tensor is None
    assert "neither name nor place" in by_truth["/left/0/Relu_output_0"].reason
    assert by_truth["/stem/Relu_output_0"].tensor == "/stem/Relu_output_0"
    assert by_truth["/stem/Relu_output_0"].how in ("lineage", "fingerprint")
    # A place in a concatenation is a place: its inputs have an order.
    assert by_truth["/head.1/Relu_output_0"].tensor == "/head.1/Relu_output_0"


def test_names_of_another_export_are_not_believed(tmp_path: Path) -> None:
    """Names that are tensors of the model too, but of others: the edges give them away."""
    model = unet(tmp_path / "net.onnx")
    compiled = make(model, tmp_path / "c", np.random.default_rng(2), naming="kept", split=0.0)
    names = [i for i, tensor in compiled.truth.items() if not tensor.startswith(("input", "mask"))]
    moved = dict(zip(names, np.roll([compiled.truth[i] for i in names], 5).tolist(), strict=True))
    for tensor in compiled.tensors:
        tensor.name = moved.get(tensor.data_id, tensor.name)
    compiled.subgraph.names.update(moved)
    result = match_tensors(
        load_model(model.read_bytes(), "net.onnx"), compiled.tensors, {"subgraph_0": compiled.subgraph}
    )
    assert any("another export" in note for note in result.notes)
    pairs = list(zip(compiled.tensors, result.found, strict=True))
    assert all(f.tensor in (None, compiled.truth[t.data_id]) for t, f in pairs)
    assert sum(f.tensor is not None for _, f in pairs) >= 0.9 * len(pairs)


def test_a_layer_that_the_compiler_added_is_listed_with_its_reason() -> None:
    device = contract(
        [Node("d0", "input", (), (3,)), Node("d1", "conv", ("d0",), (8,)), Node("d2", "convert", ("d1",), (8,))]
    )
    model = contract([Node("x", "input", (), (3,)), Node("y", "conv", ("x",), (8,), True)])
    assert {a: b for a, (b, _) in pair(device, model, {0: 0}).items()} == {0: 0, 1: 1}
    found = align(device, 1, model, 1)
    assert found.extra == ("d2",) and found.candidates == {"d1": ("y",)}


def test_where_two_cuts_fit_both_are_candidates() -> None:
    """Convolution, norm, activation as two layers: nothing but values tells after which operator the cut is."""
    device = contract(
        [Node("d0", "input", (), (3,)), Node("d1", "conv", ("d0",), (8,)), Node("d2", "scale", ("d1",), (8,))]
    )
    steps = [Node("x", "input", (), (3,)), Node("c", "conv", ("x",), (8,)), Node("b", "scale", ("c",), (8,))]
    model = contract([*steps, Node("r", "scale", ("b",), (8,), True)])
    found = align(device, 1, model, 1)
    assert found.candidates == {"d1": ("c", "b"), "d2": ("r",)}


def test_a_pair_needs_the_same_neighbours() -> None:
    """Two convolutions of one shape in a row, the first known to be the second: the other is none of the model's."""
    graph = [Node("d0", "input", (), (3,)), Node("d1", "conv", ("d0",), (8,)), Node("d2", "conv", ("d1",), (8,))]
    other = [Node("x", "input", (), (3,)), Node("y", "conv", ("x",), (8,)), Node("z", "conv", ("y",), (8,))]
    found = pair(contract(graph), contract(other), {1: 2})
    assert found[1] == (2, "anchor") and 2 not in found


def test_a_prefix_is_a_whole_number_of_components() -> None:
    assert common_rename(["/a/m/Conv", "/a/m/Conv_1"], ["/b/m/Conv", "/b/m/Conv_1", "/b/m/Conv_10"]) == ("/a", "/b")
    assert common_rename(["Conv_1", "Conv_2"], ["Conv_11", "Conv_12"]) is None
    assert renamed([("p/a", "q/a"), ("p/b", "q/b"), ("p/c", "x")]) is None
    assert renamed([("p/a", "q/a"), ("p/b", "q/b")]) == ("p", "q")


def test_weight_scales_say_nothing_where_they_are_not_the_models() -> None:
    peaks = [np.array([0.5, 1.0])]
    assert (weight_score(WeightScales((127.0,), 8), peaks) or 0) > 4
    assert (weight_score(WeightScales((254.0, 127.0), 8), peaks) or 0) > 4
    assert (weight_score(WeightScales((64.0,), 8), peaks) or 0) < 1
    assert weight_score(None, peaks) is None


def test_several_sub_graphs_are_one_comparison(tmp_path: Path) -> None:
    """One operator on the CPU cuts the model: each part has its own data ids, files and data-convert layers."""
    model = enhancer(tmp_path / "m.onnx")
    value = picture((1, 3, 48, 64), 3)
    options = CompileOptions(calibration_frames=1, deny_list_layer_name=("/Tanh_output_0",))
    compile_model(model, tmp_path / "a", [{"input": value}], options)
    networks = load_all(tmp_path / "a")
    assert list(networks) == ["subgraph_0", "subgraph_1"]
    folder = tmp_path / "traces"
    folder.mkdir()
    values = {"input": value}
    for name, faults in (("subgraph_0", ()), ("subgraph_1", (Fault("/Sub_1_output_0", "gain", 1.3),))):
        feeds = {key: values[key] for key in networks[name].inputs}
        tensors = Twin(networks[name], faults).run(feeds, [layer.name for layer in networks[name].tensors()])
        for layer in networks[name].tensors():
            (kind,) = kinds(layer, 1)
            (folder / file_name(layer, name, kind)).write_bytes(content(layer, tensors[layer.name], kind))
        values |= {key: tensors[key] for key in networks[name].outputs}
        values["/Tanh_output_0"] = np.tanh(values["/dec/c4/Conv_output_0"]).astype(np.float32)
    np.save(folder / "input.npy", value)
    answer = compare(folder, model=model, tempdir=tmp_path / "a")
    assert [c.layer for c in answer.culprits] == ["/Sub_1_output_0"]
    twins_ = {layer.name: layer.tensor for layer in answer.layers}
    for cut in ("/dec/c4/Conv_output_0", "/dec/c4/Conv_output_0_original", "/Tanh_output_0_netFormat"):
        assert twins_[cut] == cut
    (left,) = answer.unmatched  # the same input, converted once more for the second part
    assert left.name == "input_netFormat" and "one of them is compared" in left.reason
    assert answer.coverage.compared == answer.coverage.traced - 1


def test_chains_of_two_compiles_share_their_ends() -> None:
    assert _from_the_end(["matmul", "scale", "shape"], ["matmul", "shape"]) == [(2, 1), (1, 0)]
    assert _from_the_end(["conv", "scale", "convert"], ["conv", "scale"]) == [(1, 1)]
    assert _from_the_end(["conv", "convert"], ["conv", "scale", "convert"]) == [(1, 2), (0, 1)]
    assert _from_the_end(["conv", "scale"], ["conv"]) == [(1, 0)]
