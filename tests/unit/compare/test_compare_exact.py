"""Host against device, bit by bit: classes, origins, places, gaps, and what can't be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegauge.compare.compiled import Subgraph
from tidegauge.compare.exact import TraceFile, compare_exact
from tidegauge.compare.exact_types import ExactComparison, ExactTensor, exact_from_json, exact_to_json
from tidegauge.compare.report.html import render_exact
from tidegauge.errors import TidegaugeError
from tidegauge.tidl.tensor_table import TensorInfo
from tidegauge.tidl.trace_names import Kind, TraceName, format_name

DIMS = (1, 1, 1, 4, 6, 8)
#: 1 reads the input 0; 2 and 3 read 1; 4 reads 2 and 3.
EDGES = {0: (), 1: (0,), 2: (1,), 3: (1,), 4: (2, 3)}


def table(dtype: str = "int8", edges: dict[int, tuple[int, ...]] | None = EDGES) -> dict[str, Subgraph]:
    rows = tuple(TensorInfo(i, f"/layer{i}", "TIDL_X", DIMS, dtype, 1.0, 0, None, None, "svg") for i in EDGES)
    names = {i: f"/layer{i}" for i in EDGES}
    return {"subgraph_0": Subgraph("subgraph_0", names=names, table=rows, order=tuple(EDGES), edges=edges)}


def codes(data_id: int, dtype: str = "int8") -> NDArray[Any]:
    info = np.iinfo(dtype)
    return np.random.default_rng(data_id).integers(info.min // 2, info.max // 2, DIMS[3:], dtype)


def file(
    data_id: int, data: bytes, cpu: str | None = None, kind: Kind = "y", sub: str | None = "subgraph_0"
) -> TraceFile:
    return TraceFile(format_name(TraceName(cpu, sub, data_id, DIMS, kind)), len(data), lambda: data)


def side(
    changes: Mapping[int, NDArray[Any]] = {}, cpu: str | None = None, ids: Sequence[int] = tuple(EDGES)
) -> list[TraceFile]:
    return [file(i, changes.get(i, codes(i)).tobytes(), cpu) for i in ids]


def changed(data_id: int, where: Any, by: int, dtype: str = "int8") -> NDArray[Any]:
    value = codes(data_id, dtype)
    value[where] += np.asarray(by, dtype)
    return value


def check(device: Sequence[TraceFile], tables: Mapping[str, Subgraph] | None = None, **more: Any) -> ExactComparison:
    return compare_exact(side(), device, table() if tables is None else tables, **more)


def of(answer: ExactComparison, data_id: int) -> ExactTensor:
    return next(t for t in answer.tensors if t.data_id == data_id)


def test_equal_runs_are_equal_whatever_the_prefix() -> None:
    answer = check(side(cpu="C7x_1"))
    assert answer.exit_code == 0 and {t.status for t in answer.tensors} == {"exact"} and answer.first is None
    assert answer.counts.share == 1.0 and "equal bit by bit" in answer.sentence
    assert all(t.host_xxh3 == t.device_xxh3 and len(t.host_xxh3) == 32 for t in answer.tensors)
    assert exact_from_json(exact_to_json(answer)) == answer


def test_the_first_divergence_has_equal_inputs_and_the_rest_inherits() -> None:
    answer = check(side({3: changed(3, (2, slice(3, 5)), 9), 4: changed(4, ..., 1)}, "C7x_1"))
    assert answer.exit_code == 1 and answer.first is not None
    first = answer.tensors[answer.first]
    assert (first.data_id, first.status, first.origin) == (3, "larger", "origin")
    assert (first.off_by_one, first.off_by_more, first.largest) == (0, 16, 9)
    assert (of(answer, 4).status, of(answer, 4).origin) == ("off_by_one", "inherits")
    assert "/layer3" in answer.sentence and "channel 2 of 4, rows 3 to 4 of 6" in answer.sentence
    assert "/layer3" in render_exact(answer) and "starts here" in render_exact(answer)


def test_two_branches_that_start_by_themselves_are_both_told() -> None:
    answer = check(side({2: changed(2, 0, 1), 3: changed(3, 0, 2)}))
    assert [t.data_id for t in answer.tensors if t.origin == "origin"] == [2, 3]
    assert "1 more start by themselves: /layer3" in answer.sentence


def test_a_missing_trace_is_listed_and_leaves_what_reads_it_undecided() -> None:
    answer = check(side({4: changed(4, 0, 1)}, ids=(0, 1, 3, 4)), min_coverage=0.5)
    assert of(answer, 2).status == "missing" and of(answer, 4).origin == "undecided"
    assert answer.exit_code == 1 and "not all that it reads was traced" in answer.sentence
    with_cause = check(side({1: changed(1, 0, 1), 4: changed(4, 0, 1)}, ids=(0, 1, 3, 4)), min_coverage=0.5)
    assert of(with_cause, 4).origin == "inherits"


def test_a_trace_that_only_the_device_has_is_unexpected_and_few_pairs_exit_3() -> None:
    answer = compare_exact(side(ids=(0, 1)), side({1: changed(1, 0, 1)}), table())
    assert of(answer, 4).status == "unexpected" and answer.counts.unexpected == 3
    assert answer.exit_code == 3 and "too few for a verdict" in answer.sentence


def test_damage_is_no_class_of_difference() -> None:
    broken = [file(1, codes(1).tobytes()[:-3]), file(2, b""), *side(ids=(0, 3, 4))]
    answer = check(
        [*broken, file(3, codes(3).tobytes(), "C7x_1"), file(3, codes(3).tobytes(), "C7x_2")], min_coverage=0
    )
    assert [of(answer, i).status for i in (1, 2, 3)] == ["truncated", "truncated", "duplicate"]
    assert answer.counts.unusable == 3 and answer.exit_code == 0 and "3 could not be compared" in answer.sentence


def test_edges_from_the_order_alone_are_said_to_be() -> None:
    device = side({2: changed(2, 0, 1), 3: changed(3, 0, 2)})
    by_rows = check(device, table(edges=None))
    assert by_rows.order == "layer_info" and [t.origin for t in by_rows.tensors if t.data_id > 1] == [
        "origin",
        "inherits",
        "none",
    ]
    bare = check(device, {})
    assert bare.order == "data id" and any("no tempDir" in note for note in bare.notes)
    assert "data id 2" in bare.sentence


@pytest.mark.parametrize(("low", "high", "largest"), [(127, 128, 1), (0, 255, 1)])
def test_the_sign_is_guessed_where_no_table_tells_it(low: int, high: int, largest: int) -> None:
    one, other = np.full(DIMS[3:], low, np.uint8), np.full(DIMS[3:], high, np.uint8)
    answer = compare_exact([file(1, one.tobytes())], [file(1, other.tobytes())], {})
    assert answer.tensors[0].sign_guessed and answer.tensors[0].largest == largest
    assert any("signed" in note for note in answer.notes)


def test_floats_of_one_side_are_not_missing_and_floats_against_codes_are_refused() -> None:
    floats = [file(i, codes(i).astype("<f4").tobytes(), kind="float") for i in EDGES]
    answer = compare_exact([*side(), *floats], side(cpu="C7x_1"), table())
    assert (
        answer.exit_code == 0
        and answer.counts.total == 5
        and {t.status for t in answer.tensors} == {"exact", "not_dumped"}
    )
    with pytest.raises(TidegaugeError, match="tensor_bits 32"):
        compare_exact(floats, side(), table())
    with pytest.raises(TidegaugeError, match="no trace files"):
        compare_exact([], side(), table())
    with pytest.raises(TidegaugeError, match="same sub-graph"):
        compare_exact(side(ids=(1,)), side(ids=(2,)), table())


def test_a_name_that_promises_nothing_is_no_division_by_zero() -> None:
    name = "tidl_trace_subgraph_0_0001_0001_0001_00000_00004_00008x00006.y"
    answer = compare_exact([TraceFile(name, 5, lambda: b"12345")], [TraceFile(name, 5, lambda: b"12345")], {})
    assert answer.tensors[0].status == "size" and answer.exit_code == 3


def test_old_names_without_a_subgraph_find_their_partner() -> None:
    old = [TraceFile(f"tidl_trace{i:04d}_00001_00004_00008x00006.y", 192, codes(i).tobytes) for i in EDGES]
    assert compare_exact(old, side(cpu="C7x_1"), table()).counts.exact == 5


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["int8", "uint8", "int16", "uint16"]), st.lists(st.integers(0, 191), unique=True), st.data())
def test_counts_and_places_are_those_of_a_plain_difference(dtype: str, at: list[int], data: st.DataObject) -> None:
    host = codes(1, dtype)
    device = host.copy().reshape(-1)
    for index in at:
        device[index] += np.asarray(data.draw(st.integers(1, 3)), dtype)
    device = device.reshape(host.shape)
    answer = compare_exact([file(1, host.tobytes())], [file(1, device.tobytes())], table(dtype))
    distance = np.abs(device.astype(int) - host.astype(int))
    tensor = answer.tensors[0]
    assert (tensor.off_by_one, tensor.off_by_more) == (int((distance == 1).sum()), int((distance > 1).sum()))
    assert tensor.status == ("exact" if not at else "off_by_one" if distance.max() == 1 else "larger")
    if at:
        assert tensor.channels is not None and tensor.rows is not None and tensor.columns is not None
        channels, rows, columns = (np.unique(axis) for axis in np.nonzero(distance))
        for spread, places in ((tensor.channels, channels), (tensor.rows, rows), (tensor.columns, columns)):
            assert (spread.touched, spread.first, spread.last) == (len(places), places[0], places[-1])
