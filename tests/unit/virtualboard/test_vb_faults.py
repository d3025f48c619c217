"""A fault changes its layer's arithmetic, and nothing that doesn't read the layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.demo.board import choose_fault
from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import ALL_KINDS, KINDS, MORE_KINDS, Fault, Kind, eligible, eligible_layers, parse
from tidegauge.virtualboard.network import TwinNetwork, load_artifacts

Tensors = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def network(artifacts: Path) -> TwinNetwork:
    return load_artifacts(artifacts)


def run(network: TwinNetwork, picture: Tensors, *faults: Fault) -> Tensors:
    return Twin(network, faults).run(picture, [layer.name for layer in network.tensors()])


@pytest.fixture(scope="module")
def healthy(network: TwinNetwork, picture: Tensors) -> Tensors:
    return run(network, picture)


def downstream(network: TwinNetwork, name: str) -> set[str]:
    ids = {network.layer(name).data_id}
    for layer in network.tensors():
        if ids & set(layer.inputs):
            ids.add(layer.data_id)
    return {layer.name for layer in network.tensors() if layer.data_id in ids}


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind != "stale"])
def test_every_eligible_fault_shows_in_its_layer_and_only_downstream(
    network: TwinNetwork, picture: Tensors, healthy: Tensors, kind: Kind
) -> None:
    layers = eligible(network)[kind]
    assert layers
    for name in layers:
        sick = run(network, picture, Fault(name, kind))
        changed = {n for n in sick if not np.array_equal(sick[n], healthy[n], equal_nan=True)}
        assert name in changed, f"{kind} on {name} is invisible"
        assert changed <= downstream(network, name)
        assert sick[name].dtype == healthy[name].dtype


def values(network: TwinNetwork, tensors: Tensors, name: str) -> np.ndarray:
    return network.layer(name).quant.values(tensors[name])


def test_gain_offset_and_zero(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    before = values(network, healthy, "relu1")
    layer = network.layer("relu1")
    step, top = 1 / layer.quant.scale, layer.quant.value_range[1]
    after = values(network, run(network, picture, Fault("relu1", "gain", 0.5)), "relu1")
    assert np.abs(after - before * 0.5).max() <= 0.51 * step
    after = values(network, run(network, picture, Fault("relu1", "offset", 0.25)), "relu1")
    assert np.abs(after - np.minimum(before + 0.25 * layer.high, top)).max() <= 0.51 * step
    assert not values(network, run(network, picture, Fault("curves", "zero")), "curves").any()


def test_a_band_is_rows(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    sick = run(network, picture, Fault("relu1", "band"))
    rows = np.flatnonzero((sick["relu1"] != healthy["relu1"]).any(axis=(0, 1, 3)))
    assert rows.tolist() == list(range(9, 13))  # 40 % to 55 % of 24


def test_saturation_is_at_the_top_code(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    sick = run(network, picture, Fault("relu1", "saturate"))["relu1"]
    assert (healthy["relu1"] == 255).mean() < 0.01
    assert (sick == 255).mean() > 0.5
    assert np.array_equal(sick == 255, healthy["relu1"] > 0.05 * 255)


def test_channels_rotate(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    sick = run(network, picture, Fault("input_netFormat", "channel_swap"))["input_netFormat"]
    assert np.array_equal(sick, np.roll(healthy["input_netFormat"], 1, axis=1))


def test_nan_needs_float(network: TwinNetwork, picture: Tensors) -> None:
    sick = run(network, picture, Fault("enhanced", "nan", 5))
    assert np.isnan(sick["enhanced"]).sum() == 5
    with pytest.raises(TidegaugeError, match=r"integer codes, which can't be NaN: layers that can: enhanced$"):
        Twin(network, (Fault("relu1", "nan"),))


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ((Fault("nowhere", "gain"),), "no layer 'nowhere': use one of input_netFormat, relu1"),
        ((Fault("relu1", "gain"), Fault("relu1", "zero")), "relu1 has two faults"),
        ((Fault("relu1", "gain", float("nan")),), "amount nan"),
        ((Fault("input", "gain"),), "no layer 'input'"),
    ],
)
def test_impossible_faults_are_refused(network: TwinNetwork, faults: tuple[Fault, ...], said: str) -> None:
    with pytest.raises(TidegaugeError, match=said):
        Twin(network, faults)


def test_eligible_layers(artifacts: Path) -> None:
    able = eligible_layers(artifacts)
    assert able["nan"] == ("enhanced",)
    assert "input_netFormat" in able["channel_swap"]
    assert able["gain"][0] == "input_netFormat"
    assert able["gain"][-1] == "enhanced"


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=20), st.sampled_from(ALL_KINDS), st.none() | st.floats(-1e3, 1e3))
def test_the_text_form_of_a_fault(layer: str, kind: Kind, amount: float | None) -> None:
    fault = Fault(layer, kind, amount)
    assert parse(f"{layer}:{kind}" + ("" if amount is None else f":{amount}")) == fault


@pytest.mark.parametrize("text", ["relu1", "relu1:melt", "gain:2", ":gain", "relu1:gain:much", ""])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(TidegaugeError, match="layer:kind"):
        parse(text)


def test_the_demo_draws_from_the_first_kinds_only() -> None:
    assert KINDS == ("gain", "offset", "band", "zero", "saturate", "channel_swap", "nan")
    assert KINDS + MORE_KINDS == ALL_KINDS


def codes_off(healthy: Tensors, sick: Tensors, name: str) -> np.ndarray:
    return sick[name].astype(np.int64) - healthy[name].astype(np.int64)


def test_one_channel_is_one_code_off(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    off = codes_off(healthy, run(network, picture, Fault("conv3_out", "one_channel", 4)), "conv3_out")
    assert np.abs(off).max() == 1
    assert np.flatnonzero(off.any(axis=(0, 2, 3))).tolist() == [4]
    assert abs(off[0, 4].mean()) < 0.01
    with pytest.raises(TidegaugeError, match=r"the amount 99 of one_channel"):
        run(network, picture, Fault("conv3_out", "one_channel", 99))


def test_rounding_is_one_code_off_in_a_share_of_all_elements(
    network: TwinNetwork, picture: Tensors, healthy: Tensors
) -> None:
    off = codes_off(healthy, run(network, picture, Fault("curves", "rounding", 0.2)), "curves")
    assert np.abs(off).max() == 1
    assert 0.15 < (off != 0).mean() < 0.25
    assert np.count_nonzero(codes_off(healthy, run(network, picture, Fault("curves", "tiny", 3)), "curves")) == 3


def test_everywhere_means_every_layer_that_can(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    sick = run(network, picture, Fault("*", "rounding"), Fault("relu1", "zero"))
    assert all(not np.array_equal(sick[name], healthy[name]) for name in healthy)
    assert not sick["relu1"].any()
    columns = run(network, picture, Fault("*", "boundary_column"))
    assert not np.array_equal(columns["input_netFormat"], healthy["input_netFormat"])


def test_a_boundary_column_is_the_last_one(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    off = codes_off(healthy, run(network, picture, Fault("relu2", "boundary_column")), "relu2")
    assert np.flatnonzero(off.any(axis=(0, 1, 2))).tolist() == [31]


def test_shear_moves_each_row_further(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    sick = run(network, picture, Fault("relu1", "shear", 2))["relu1"]
    right = healthy["relu1"]
    for row in (0, 1, 5):
        assert np.array_equal(sick[..., row, : 32 - 2 * row], right[..., row, 2 * row :])


def test_stale_and_first_frame_need_memory(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    names = [layer.name for layer in network.tensors()]
    other = {"input": picture["input"][..., ::-1].copy()}
    right = Twin(network).run(other, names)
    twin = Twin(network, (Fault("conv3_out", "stale"), Fault("enhanced", "first_frame")))
    first, second, third = (twin.run(feed, names) for feed in (picture, other, picture))
    assert np.array_equal(first["conv3_out"], healthy["conv3_out"])
    assert np.array_equal(second["conv3_out"], healthy["conv3_out"])
    assert np.array_equal(third["conv3_out"], right["conv3_out"])
    assert not np.array_equal(first["enhanced"], healthy["enhanced"])
    # From the second run on the output layer is healthy: it says what its input says.
    assert np.array_equal(second["enhanced"], values(network, second, "enhanced_original"))


def test_inside_a_convolution(network: TwinNetwork, picture: Tensors, healthy: Tensors) -> None:
    for kind in ("weights", "bias", "accumulator", "requantise"):
        assert "conv3_out" in eligible(network)[kind]
        assert "curves" not in eligible(network)[kind]
    before = values(network, healthy, "conv3_out")
    halved = values(network, run(network, picture, Fault("conv3_out", "weights", 0.0)), "conv3_out")
    assert np.ptp(halved, axis=(2, 3)).max() == 0  # only the bias is left
    step = 1 / network.layer("conv3_out").quant.scale
    shifted = values(network, run(network, picture, Fault("conv3_out", "requantise", -1)), "conv3_out")
    assert np.abs(shifted - before / 2).max() <= 1.01 * step
    largest = max(-network.layer("conv3_out").low, network.layer("conv3_out").high)
    wrapped = values(network, run(network, picture, Fault("conv3_out", "accumulator")), "conv3_out")
    small = np.abs(before) < 0.5 * largest - step
    assert np.abs(wrapped - before)[small].max() <= 1.01 * step
    assert np.abs(wrapped).max() <= 0.5 * largest + step
    with pytest.raises(TidegaugeError, match="no inner product with weights: layers that can: relu1"):
        run(network, picture, Fault("curves", "bias"))


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_the_demo_injects_whichever_kind_is_asked_for(artifacts: Path, kind: Kind) -> None:
    if not eligible_layers(artifacts)[kind]:
        pytest.skip(f"no layer of this network can have the fault {kind}")
    fault = choose_fault(artifacts, seed=1, kind=kind, layer=None)
    assert fault is not None and fault.kind == kind and fault.layer in eligible_layers(artifacts)[kind]
