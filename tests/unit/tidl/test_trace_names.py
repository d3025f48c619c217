from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.tidl.trace_names import TraceName, expected_bytes, format_name, parse

KNOWN = {
    "C7x_1_tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128x00096.y": TraceName(
        "C7x_1", "subgraph_0", 9, (1, 1, 1, 64, 96, 128), "y"
    ),
    "tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128x00128_float.bin": TraceName(
        None, "subgraph_0", 9, (1, 1, 1, 64, 128, 128), "float"
    ),
    "tidl_trace_75_0049_0001_0001_00001_00003_00600x00400.y": TraceName(None, "75", 49, (1, 1, 1, 3, 400, 600), "y"),
    "tidl_trace_subgraph_0_0001_0001_0001_00004_00002_000128x00064_float.bin": TraceName(
        None, "subgraph_0", 1, (1, 1, 4, 2, 64, 128), "float"
    ),
    "tidl_trace__backbone_Conv_output_0_0012_0002_0003_00004_00005_00006x00007_paded.y": TraceName(
        None, "_backbone_Conv_output_0", 12, (2, 3, 4, 5, 7, 6), "padded"
    ),
    "tidl_trace0072_00001_00256_00010x00014.y": TraceName(None, None, 72, (1, 1, 1, 256, 14, 10), "y"),
    "tidl_trace0007_00001_00001_01600x00001_float.bin": TraceName(None, None, 7, (1, 1, 1, 1, 1, 1600), "float"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_names_of_every_release_are_read(name: str) -> None:
    assert parse(name) == KNOWN[name]


@pytest.mark.parametrize(
    "name",
    [
        "tidl_trace_subgraph_0_perf.csv",
        "tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128.y",
        "tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128x00128.y.tmp",
        "x_tidl_trace_subgraph_0_0009_0001_0001_00001_00064_00128x00128.y",
        "tidl_trace_../etc_0009_0001_0001_00001_00064_00128x00128.y",
        "tidl_trace_a_\u0660\u0660\u0660\u0669_0001_0001_00001_00064_00128x00128.y",
        "",
    ],
)
def test_other_files_are_no_traces(name: str) -> None:
    assert parse(name) is None


def test_the_target_writes_width_before_height() -> None:
    name = format_name(TraceName("C7x_1", "subgraph_0", 42, (1, 1, 1, 16, 90, 160), "y"))
    assert name == "C7x_1_tidl_trace_subgraph_0_0042_0001_0001_00001_00016_00160x00090.y"


sizes = st.integers(1, 200_000)


@settings(max_examples=150)
@given(
    st.sampled_from([None, "C7x_1", "C7x_4"]),
    st.text("ab_019.x", min_size=1, max_size=12) | st.none(),
    st.integers(0, 99_999),
    st.tuples(sizes, sizes, sizes, sizes, sizes, sizes),
    st.sampled_from(["y", "float", "padded"]),
)
def test_a_formatted_name_is_read_back(cpu, subgraph, data_id, dims, kind) -> None:  # type: ignore[no-untyped-def]
    trace = TraceName(cpu, subgraph, data_id, dims, kind)
    assert parse(format_name(trace)) == trace


@settings(max_examples=100)
@given(st.text(max_size=60))
def test_any_name_is_a_trace_or_none(tail: str) -> None:
    parse(tail)
    parse("tidl_trace_" + tail)


def test_expected_bytes() -> None:
    assert expected_bytes((1, 1, 1, 3, 640, 640), "int16") == 2457600
    assert expected_bytes((1, 1, 1, 3, 640, 640), "float32") == 4915200
