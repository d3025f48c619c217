from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.pipeline.channel import FD_ENVIRONMENT
from tidegauge.pipeline.messages import TraceCommand
from tidegauge.pipeline.process import (
    FailureKind,
    WorkerFault,
    output_digest,
    read_tensors,
    run_worker,
    split_tensors,
)
from tidegauge.tensors import ELEMENT_SIZES, TensorSpec

SPECS = (TensorSpec("a", (2, 3), "float32"), TensorSpec("b", (5,), "int16"))


def test_tensors_are_read_one_after_another(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(-2, 3, dtype=np.int16)
    path = tmp_path / "input.bin"
    path.write_bytes(a.tobytes() + b.tobytes())
    tensors = read_tensors(path, SPECS)
    assert list(tensors) == ["a", "b"]
    np.testing.assert_array_equal(tensors["a"], a, strict=True)
    np.testing.assert_array_equal(tensors["b"], b, strict=True)


@pytest.mark.parametrize("size", [0, 33, 35, 68])
def test_a_file_of_another_size_is_named_with_both_sizes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "input.bin"
    path.write_bytes(bytes(size))
    with pytest.raises(WorkerFault) as caught:
        read_tensors(path, SPECS)
    assert caught.value.kind == FailureKind.INPUT_FILE
    assert caught.value.problem == (
        f"{path} has {size} bytes, but the model's input (a [2, 3] float32, b [5] int16) has 34"
    )


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkerFault, match=r"none\.bin can't be read \(No such file or directory\)"):
        read_tensors(tmp_path / "none.bin", SPECS)


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), max_size=3).map(tuple), st.sampled_from(sorted(ELEMENT_SIZES))),
        max_size=4,
    )
)
def test_splitting_undoes_joining(kinds: list[tuple[tuple[int, ...], str]]) -> None:
    specs = tuple(TensorSpec(f"t{index}", shape, dtype) for index, (shape, dtype) in enumerate(kinds))
    arrays = [np.arange(np.prod(spec.shape)).astype(spec.dtype).reshape(spec.shape) for spec in specs]
    tensors = split_tensors(b"".join(array.tobytes() for array in arrays), specs)
    for spec, array in zip(specs, arrays, strict=True):
        np.testing.assert_array_equal(tensors[spec.name], array, strict=True)


def test_the_digest_is_that_of_the_bytes_in_order_whatever_the_memory_layout() -> None:
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    b = np.array([1, 2], np.uint8)
    expected = xxhash.xxh3_128_hexdigest(a.tobytes() + b.tobytes())
    assert output_digest([a, b]) == expected
    assert output_digest([np.asfortranarray(a), b]) == expected
    assert output_digest([b, a]) != expected
    assert output_digest([a.reshape(4, 3), b]) == expected, "bytes only: the shape is the model's"


def test_started_by_hand_it_says_so_and_leaves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(FD_ENVIRONMENT, raising=False)
    assert run_worker(TraceCommand, lambda channel: pytest.fail("must not run")) == 2
    assert "run `tidegauge agent run` instead" in capsys.readouterr().err
