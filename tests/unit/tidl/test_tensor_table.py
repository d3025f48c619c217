from __future__ import annotations

import csv
import math
from pathlib import Path

import msgspec
import pytest

from tidegauge.tidl import elements, io_descriptor, layer_info, tensor_table
from tidegauge.tidl.errors import FormatError
from tidegauge.tidl.tensor_table import (
    Disagreement,
    TensorInfo,
    checked_scale,
    disagreements,
    from_quant_proto,
    from_remote_log,
    from_svg,
    merge,
)

LINE = " %3d %15.5f %15.5f %15.5f %d\n"


def info(data_id: int | None, name: str | None, scale: float | None, source: str) -> TensorInfo:
    return TensorInfo(data_id, name, None, None, "int8", scale, 0, None, None, source)


def test_svg_of_a_real_compile_against_the_published_table(real_svg: str, real_compile: Path) -> None:
    with (real_compile / "derived_tensor_table_from_svg.csv").open(newline="") as file:
        expected = list(csv.DictReader(file))
    table = from_svg(real_svg)
    assert len(table) == len(expected) == 120
    for told, row in zip(table, expected, strict=True):
        element = elements.from_svg_name(row["elementType"])
        assert element is not None
        assert (told.data_id, told.name, told.layer_kind) == (int(row["dataId"]), row["name"], row["type"])
        assert told.dims == tuple(int(size) for size in row["dims"].split(","))
        assert (told.dtype, told.scale, told.zero_point) == (
            element.dtype,
            float(row["tensorScale"]),
            int(row["zeroPoint"]),
        )
        assert (told.minimum, told.maximum) == (float(row["minTensor"]), float(row["maxTensor"]))
        assert told.problem == ""


def test_svg_and_proto_of_a_real_compile_agree_on_all_122(real_svg: str, real_proto: str) -> None:
    proto, graph = from_quant_proto(real_proto), from_svg(real_svg)
    assert len(proto) == 122
    names = {row.name for row in graph}
    assert sum(row.name in names for row in proto) == 122
    assert disagreements(proto, graph) == ()


def test_a_proto_of_another_compile_is_noticed(real_svg: str, real_proto: str) -> None:
    proto = [
        msgspec.structs.replace(row, scale=row.scale * 1.001) if row.name == "1" and row.scale else row
        for row in from_quant_proto(real_proto)
    ]
    found = disagreements(proto, from_svg(real_svg))
    assert [item.name for item in found] == ["1"]
    assert isinstance(found[0], Disagreement)


def node(number: int, name: str, outputs: str) -> str:
    text = f"Layer {number}: TIDL_ConvolutionLayer &quot;{name}&quot;\n &#160;&#160;Outputs:\n{outputs}"
    return f"<!-- {text} -->\n<title>{text}</title>\n"


def output(data_id: int, scale: str = "2.0", element: str = "TIDL_SignedChar", dims: str = "1,1,1,3,8,8") -> str:
    return (
        f" &#160;[{data_id}] numDim=6 dims=[{dims}] &#160;elementType={element}\n"
        f" &#160;min/maxValue=(0,0) min/maxTensorValue=(-1.5,nan)\n tensorScale={scale}\n tensorZeroPoint=-7\n"
    )


def test_svg_with_two_outputs_and_an_unknown_type() -> None:
    table = from_svg(node(0, "a &amp; b", output(3) + output(4, element="TIDL_Half")))
    assert [(row.data_id, row.name, row.scale) for row in table] == [(3, "a & b", 2.0), (4, None, None)]
    assert (table[0].zero_point, table[0].minimum, table[0].maximum) == (-7, -1.5, None)
    assert "TIDL_Half" in table[1].problem


def test_svg_of_an_old_release_has_four_dimensions_and_no_zero_point() -> None:
    old = output(3, dims="1,3,8,9").replace(" tensorZeroPoint=-7\n", "")
    row = from_svg(node(0, "a", old))[0]
    assert (row.dims, row.zero_point, row.scale) == ((1, 1, 1, 3, 8, 9), None, 2.0)


def test_svg_refuses_what_is_no_network_and_a_data_id_told_twice() -> None:
    for text in ("", "<svg></svg>", node(0, "a", output(3, dims="1,2,3"))):
        with pytest.raises(FormatError):
            from_svg(text)
    with pytest.raises(FormatError, match="data id 3"):
        from_svg(node(0, "a", output(3)) + node(1, "b", output(3)))


@pytest.mark.parametrize("written", ["0.000000", "-1.0", "nan", "-nan", "inf", "1e31", "1e-31", "fast", "1e999"])
def test_absurd_scales_are_no_scales(written: str) -> None:
    scale, problem = checked_scale(written)
    assert scale is None
    assert written in problem
    row = from_svg(node(0, "a", output(3, scale=written)))[0]
    assert row.scale is None
    assert row.problem


def proto(outputs: str, name: str = "a") -> str:
    return f'num_layers: 1\nlayers {{ layer_name: "{name}" layer_type: "T" outputs {{ {outputs} }} }}'


def test_proto_with_escapes_comments_and_colons_before_braces() -> None:
    text = (
        '# head\nnum_layers: 1 layers: { layer_name: "a\\"b" outputs: { element_type: 1, scale: 4.5; zero_point: -3 } }'
    )
    row = from_quant_proto(text)[0]
    assert (row.name, row.scale, row.zero_point, row.dtype, row.data_id) == ('a"b', 4.5, -3, "int8", None)


def test_proto_with_a_scale_for_each_channel_has_no_tensor_scale() -> None:
    row = from_quant_proto(proto("element_type: 1 scale: 1.0 scale: 2.0"))[0]
    assert row.scale is None
    assert "2 scales" in row.problem


@pytest.mark.parametrize(
    "text",
    [
        "",
        "num_layers: 2 layers { layer_name: 'a' }",
        'num_layers: 1 layers { layer_type: "T" }',
        'num_layers: 1 layers { layer_name: "a" ',
        'num_layers: 1 layers { layer_name: "a" }}',
        "num_layers: x",
        "num_layers: 1 layers: 5",
        "num_layers 1",
        proto("element_type: 1.5"),
        "a { " * 50 + "}" * 50,
        'num_layers: 1 layers { layer_name: "a\n" }',
    ],
)
def test_proto_refuses(text: str) -> None:
    with pytest.raises(FormatError):
        from_quant_proto(text)


def test_scales_from_a_remote_log() -> None:
    log = (
        "[C7x_1 ]  1851913.287814 s:  Layer,   Layer Cycles,\r\n"
        + "[C7x_1 ]  1851913.287900 s: "
        + LINE % (3, 879.653137, 0.0, 39.165535, 2)
        + LINE % (12, 0.000001, -1.0, 2.0, 1)
        + "[MCU1_0]      4.000001 s: alive\n"
        + "[C7x_1 ]  1851913.287901 s:  13   1.0"
    )
    table = {row.data_id: row for row in from_remote_log(log)}
    assert set(table) == {3, 12}
    assert (table[3].scale, table[3].dtype, table[3].zero_point, table[3].name) == (879.65314, "uint16", None, None)
    assert table[3].maximum == pytest.approx(39.16554)
    assert table[12].scale is None, "a scale printed as 0.00000 is not zero, it is unknown"


def test_log_told_twice_is_fine_unless_it_differs() -> None:
    again = LINE % (3, 2.0, 0.0, 1.0, 1) + LINE % (3, 2.0, -1.0, 5.0, 1)
    assert [(row.scale, row.maximum) for row in from_remote_log(again)] == [(2.0, 5.0)]
    mixed = again + LINE % (3, 4.0, 0.0, 1.0, 1) + LINE % (3, 4.0, 0.0, 1.0, 1)
    row = from_remote_log(mixed)[0]
    assert row.scale is None
    assert "two networks" in row.problem


def test_a_log_printed_from_the_real_table_agrees_with_it(real_svg: str) -> None:
    graph = from_svg(real_svg)
    lines = [
        LINE % (row.data_id, row.scale, row.minimum, row.maximum, elements.from_dtype(row.dtype or ""))
        for row in graph
        if row.scale is not None
    ]
    log = from_remote_log("".join(lines))
    assert len(log) == 120
    assert disagreements(graph, log) == ()
    assert {row.data_id: row.dtype for row in log} == {row.data_id: row.dtype for row in graph}


def test_merge_takes_the_first_source_with_a_usable_scale() -> None:
    svg = [info(1, "a", 10.0, "svg"), info(2, "b", None, "svg"), info(3, "c", None, "svg"), info(4, "d", None, "svg")]
    named = [info(None, "a", 11.0, "proto"), info(None, "b", 12.0, "proto"), info(None, "b", 99.0, "proto")]
    table = merge(svg, named, [info(3, None, 15.0, "log")], [info(3, "c", 14.0, "io")])
    assert [(row.data_id, row.name, row.scale, row.source) for row in table] == [
        (1, "a", 10.0, "svg"),
        (2, "b", 12.0, "proto"),
        (3, "c", 14.0, "io"),
        (4, "d", None, "svg"),
    ]


def test_merge_never_mixes_scale_and_zero_point() -> None:
    svg = msgspec.structs.replace(info(1, "a", None, "svg"), zero_point=5, dims=(1, 1, 1, 3, 8, 8), layer_kind="K")
    log = msgspec.structs.replace(info(1, None, 2.0, "log"), zero_point=None)
    row = merge([svg], (), [log])[0]
    assert (row.scale, row.zero_point, row.source) == (2.0, None, "log")
    assert (row.name, row.dims, row.layer_kind) == ("a", (1, 1, 1, 3, 8, 8), "K")


def test_merge_on_a_board_uses_layer_info_for_names(real_layer_info: str, real_proto: str, real_io: bytes) -> None:
    rows = layer_info.parse(real_layer_info)
    log = from_remote_log(LINE % (2, 601.96619, -1.0, 1.0, 3))
    io = tensor_table.from_io_descriptor(io_descriptor.parse(real_io))
    table = {row.data_id: row for row in merge((), (), log, io, rows)}
    assert (table[2].name, table[2].source) == ("1", "log")
    assert (table[0].name, table[0].source, table[118].name) == ("input", "io", "dets")
    full = merge((), from_quant_proto(real_proto), log, io, rows)
    assert [row.data_id for row in full] == list(range(120))
    assert full[2].source == "proto"
    assert math.isclose(full[2].scale or 0.0, 601.9661865234375)
