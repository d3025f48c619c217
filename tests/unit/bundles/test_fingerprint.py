"""Fingerprints against plain NumPy on the whole tensor."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tidegauge.bundles import fingerprint as module
from tidegauge.bundles.fingerprint import digest_bytes, digest_file, fingerprint


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["uint8", "int8", "uint16", "int16", "int32", "int64"]), st.integers(1, 3000), st.integers(0, 99)
)
def test_integers(dtype: str, count: int, seed: int) -> None:
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    codes = rng.integers(limits.min, limits.max, count, dtype=dtype, endpoint=True)
    codes[rng.random(count) < 0.3] = limits.max
    codes[rng.random(count) < 0.2] = 0
    seen = fingerprint(codes)
    values = codes.astype(np.float64)
    assert (seen.count, seen.non_finite) == (count, 0)
    assert (seen.minimum, seen.maximum) == (float(codes.min()), float(codes.max()))
    assert seen.mean == pytest.approx(values.mean(), rel=1e-9, abs=1e-9 * float(limits.max))
    assert seen.rms == pytest.approx(np.sqrt(np.mean(values**2)), rel=1e-9)
    assert seen.zero_share == np.mean(codes == 0)
    assert seen.low_share == np.mean(codes == limits.min)
    assert seen.high_share == np.mean(codes == limits.max)
    if codes.itemsize == 1:
        assert seen.counts == tuple(int(np.sum(codes == code)) for code in range(limits.min, limits.max + 1))
    else:
        assert seen.counts is None


def test_float_leaves_non_finite_out() -> None:
    seen = fingerprint(np.array([1.0, -3.0, 0.0, np.nan, np.inf, -np.inf], np.float32))
    assert (seen.count, seen.non_finite) == (6, 3)
    assert (seen.minimum, seen.maximum) == (-3.0, 1.0)
    assert seen.mean == pytest.approx(-2 / 3)
    assert seen.rms == pytest.approx(np.sqrt(10 / 3))
    assert seen.zero_share == 1 / 6
    assert seen.counts is None


def test_nothing_finite_has_no_numbers() -> None:
    seen = fingerprint(np.full(5, np.nan, np.float32))
    assert (seen.minimum, seen.maximum, seen.mean, seen.rms) == (None, None, None, None)
    assert seen.non_finite == 5


def test_large_floats_do_not_overflow() -> None:
    seen = fingerprint(np.full(100, 3e38, np.float32))
    assert seen.rms == pytest.approx(3e38, rel=1e-6)


@pytest.mark.parametrize("array", [np.zeros((0, 3), np.int8), np.zeros(3, np.float64), np.zeros(3, np.bool_)])
def test_what_has_no_fingerprint_is_refused(array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="fingerprint"):
        fingerprint(array)


def test_blocks_and_memory_order_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = np.random.default_rng(1).integers(0, 255, (7, 11, 13), dtype=np.uint8)
    whole = fingerprint(codes)
    monkeypatch.setattr(module, "BLOCK", 10)
    assert fingerprint(codes) == whole
    assert fingerprint(np.asfortranarray(codes)) == whole
    assert fingerprint(codes[:, ::2]) == fingerprint(codes[:, ::2].copy())


def test_digests(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000  # more than one read
    path = tmp_path / "x"
    path.write_bytes(data)
    expected = (hashlib.sha256(data).hexdigest(), xxhash.xxh3_128(data).hexdigest())
    assert digest_file(path) == digest_bytes(data) == expected
