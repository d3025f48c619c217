"""A fault changes its layer's arithmetic, and nothing that doesn't read the layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.errors import TidegaugeError
from tidegauge.virtualboard.execution import Twin
from tidegauge.virtualboard.faults import KINDS, Fault, Kind, eligible, eligible_layers, parse
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


@pytest.mark.parametrize("kind", KINDS)
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
@given(st.text(min_size=1, max_size=20), st.sampled_from(KINDS), st.none() | st.floats(-1e3, 1e3))
def test_the_text_form_of_a_fault(layer: str, kind: Kind, amount: float | None) -> None:
    fault = Fault(layer, kind, amount)
    assert parse(f"{layer}:{kind}" + ("" if amount is None else f":{amount}")) == fault


@pytest.mark.parametrize("text", ["relu1", "relu1:melt", "gain:2", ":gain", "relu1:gain:much", ""])
def test_bad_text_is_refused(text: str) -> None:
    with pytest.raises(TidegaugeError, match="layer:kind"):
        parse(text)
