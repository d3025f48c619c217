from __future__ import annotations

import pytest

from tidegauge.tidl import layer_info, netlog
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.layer_info import LayerRow


def test_layer_info_of_a_real_compile(real_layer_info: str) -> None:
    rows = layer_info.parse(real_layer_info)
    assert len(rows) == 122
    assert rows[1] == LayerRow(1, 1, "input_netFormat")
    assert rows[2] == LayerRow(2, 2, "1")
    assert rows[120:] == (LayerRow(120, 0, "input"), LayerRow(121, 0, "input"))


def test_layer_info_keeps_names_with_blanks_and_drops_a_fourth_column() -> None:
    assert layer_info.parse("0 0 a b \n1 1 7 c \n2 2 9 \n") == (
        LayerRow(0, 0, "a b"),
        LayerRow(1, 1, "7 c"),
        LayerRow(2, 2, "9"),
    )
    assert layer_info.parse("0 0 1 a b \r\n1 1 2 7 \r\n") == (LayerRow(0, 0, "a b"), LayerRow(1, 1, "7"))


@pytest.mark.parametrize("text", ["", "\n \n", "0 0\n", "0 x name\n", "0 0 a\n-1 2 b\n"])
def test_layer_info_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        layer_info.parse(text)


def test_layer_info_names_the_line() -> None:
    with pytest.raises(FormatError, match="line 2") as caught:
        layer_info.parse("0 0 a\nbroken\n")
    assert caught.value.line == 2


def test_netlog_of_a_real_compile(real_netlog: str) -> None:
    log = netlog.parse(real_netlog)
    assert len(log.layers) == 122
    assert log.giga_macs == pytest.approx(13.3203)
    first, detection, sink = log.layers[0], log.layers[117], log.layers[120]
    assert (first.kind, first.inputs, first.output, first.input_count) == ("TIDL_DataLayer", (), 0, -1)
    assert (detection.name, detection.inputs, detection.output) == ("dets_det", (82, 99, 116), 117)
    assert (sink.name, sink.inputs, sink.output) == ("dets", (118,), None)
    assert log.layers[2].output_dims == (1, 1, 1, 12, 320, 320)
    assert log.layers[3].macs == 353894400


def test_netlog_and_layer_info_tell_the_same_data_ids(real_netlog: str, real_layer_info: str) -> None:
    by_layer = {row.layer: row.data_id for row in layer_info.parse(real_layer_info)}
    for layer in netlog.parse(real_netlog).layers:
        if layer.output is not None:
            assert by_layer[layer.number] == layer.output


def test_every_edge_of_the_real_network_has_a_source(real_netlog: str) -> None:
    layers = netlog.parse(real_netlog).layers
    written = {layer.output for layer in layers}
    assert all(data_id in written for layer in layers for data_id in layer.inputs)
    assert all(len(layer.inputs) == max(layer.input_count, 0) for layer in layers)


ROW = "  0|TIDL_DataLayer |a|b | 0|-1| 1| x x | 0 | 0 0 0 0 0 0 | 1 1 1 3 8 8 | 0 |"


def test_netlog_keeps_a_bar_in_a_name() -> None:
    assert netlog.parse(f"Num of Layer Detected : 1\n{ROW}\n").layers[0].name == "a|b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ROW,
        f"Num of Layer Detected : 2\n{ROW}\n",
        f"Num of Layer Detected : 1\n{ROW[:-20]}\n",
        f"Num of Layer Detected : 1\n{ROW.replace('3 8 8', '3 8')}\n",
        f"Num of Layer Detected : 1\n{ROW.replace('| 0 |', '| zero |')}\n",
    ],
)
def test_netlog_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        netlog.parse(text)


def test_a_cut_netlog_is_refused(real_netlog: str) -> None:
    with pytest.raises(FormatError, match="122"):
        netlog.parse(real_netlog[: len(real_netlog) // 2].rsplit("\n", 1)[0])
