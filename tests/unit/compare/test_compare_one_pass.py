"""The compiled sweep against plain NumPy: every sum, with values that are not finite or huge, on any number of cores;
and where its machine code is kept."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tidegauge.compare import cores, machine_code, one_pass
from tidegauge.compare.statistics import Encoding, Sums, measure
from tidegauge.errors import TidegaugeError

KINDS = ["int8", "uint8", "int16", "uint16", "float32"]


def plain(codes: Any, reference: Any, encoding: Encoding, pivot: float) -> dict[str, Any]:
    """The same sums the long way: float64, whole tensors. `doubt`: what float32 differences may be off by."""
    f = reference.astype(np.float64)
    v = (codes.astype(np.float64) - encoding.zero_point) * np.float32(1.0 / encoding.scale)
    fine = np.isfinite(v) & np.isfinite(f)
    with np.errstate(invalid="ignore"):
        d, g, f2 = np.where(fine, v - f, 0.0), np.where(fine, f - pivot, 0.0), np.where(fine, f, 0.0) ** 2
    usual = (np.abs(d) < 1e15) & (np.abs(g) < 1e15)
    unit = 2.4e-7 * float(np.abs(np.where(usual & fine, v, 0.0)).max())
    doubt = unit * (2 * float((np.abs(d) + np.abs(g))[usual].sum()) + d.size * (unit + 1))
    channels = (-1, *codes.shape[-2:])
    low, high = encoding.code_range if encoding.integer else (None, None)
    return {
        "count": int(fine.sum()),
        "d": d.sum(),
        "abs_d": np.abs(d).sum(),
        "d2": (d**2).sum(),
        "max_d": np.abs(d).max(),
        "g": g.sum(),
        "g2": (g**2).sum(),
        "dg": (d * g).sum(),
        "low": int((codes == low).sum()) if low is not None else 0,
        "high": int((codes == high).sum()) if high is not None else 0,
        "device_bad": int((~np.isfinite(v)).sum()),
        "reference_bad": int((~np.isfinite(f)).sum()),
        "channel_d2": (d**2).reshape(channels).sum(axis=(1, 2)),
        "row_d2": (d**2).reshape(channels).sum(axis=(0, 2)),
        "column_d2": (d**2).reshape(channels).sum(axis=(0, 1)),
        "channel_f2": f2.reshape(channels).sum(axis=(1, 2)),
        "row_f2": f2.reshape(channels).sum(axis=(0, 2)),
        "least": np.min(reference),
        "most": np.max(reference),
        "doubt": doubt,
    }


def check(sums: Sums, expected: dict[str, Any]) -> None:
    """Sums of float32 squares hold to a few parts in 100,000 of the sum of their magnitudes."""
    n = max(1, expected["count"])
    size = {"d": expected["abs_d"], "g": (n * expected["g2"]) ** 0.5, "dg": (expected["d2"] * expected["g2"]) ** 0.5}
    doubt = expected.pop("doubt")
    for name, value in expected.items():
        got = getattr(sums, name)
        if isinstance(value, int) or name in ("least", "most"):
            assert got == value or (np.isnan(got) and np.isnan(value)), name
        else:
            np.testing.assert_allclose(got, value, rtol=3e-5, atol=1e-5 * size.get(name, 0.0) + doubt, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(
    shape=st.one_of(
        st.tuples(st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
        st.tuples(st.just(1), st.integers(1, 3), st.integers(1, 3), st.sampled_from([255, 256, 300, 5000])),
    ),
    kind=st.sampled_from(KINDS),
    mean=st.sampled_from([0.0, 3.0, -4000.0]),
    broken=st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 1e17, -3e38]), max_size=4),
    seed=st.integers(0, 2**16),
)
@example((3, 70, 70), "float32", 0.0, [np.nan, 3e38], 1)
@example((200, 9, 9), "uint8", 0.0, [np.inf], 2)
def test_every_sum_is_that_of_plain_arithmetic(
    shape: tuple[int, ...], kind: str, mean: float, broken: list[float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    reference = random.normal(mean, 1, shape).astype(np.float32)
    encoding = Encoding(kind) if kind == "float32" else Encoding(kind, 20.0, int(random.integers(-9, 9)))
    device = reference + random.normal(0, 0.05, shape).astype(np.float32)
    codes = device.astype(np.float32) if kind == "float32" else encoding.codes(device).astype(kind)
    for value in broken:
        side = codes if kind == "float32" and random.integers(2) else reference
        side.reshape(-1)[random.integers(side.size)] = value
    sums = measure(codes, reference, encoding)
    check(sums, plain(codes, reference, encoding, sums.pivot))
    totals = measure(codes, reference, encoding, profiles=False)
    assert totals.channel_d2 is None and totals.row_f2 is None
    assert totals.count == sums.count and totals.d2 == pytest.approx(sums.d2, rel=3e-5)


@pytest.mark.parametrize("shape", [(40, 200, 200), (3, 400, 1000), (9, 100, 1024)])
def test_the_number_of_cores_changes_no_bit(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    reference = random.normal(0, 1, shape).astype(np.float32)
    reference.reshape(-1)[::99991] = np.nan
    codes = Encoding("int8", 40.0).codes(np.nan_to_num(reference)).astype(np.int8)
    found = []
    for usable in ({0}, {0, 1}, set(range(7))):
        cores._pool.cache_clear()
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, usable=usable: usable)
        found.append(measure(codes, reference, Encoding("int8", 40.0)))
    cores._pool.cache_clear()
    for other in found[1:]:
        for name, value in vars(found[0]).items():
            assert np.array_equal(getattr(other, name), value, equal_nan=True), name
    check(found[0], plain(codes, reference, Encoding("int8", 40.0), found[0].pivot))


@pytest.mark.parametrize("planes", [False, True])
def test_parts_cover_every_element_once(planes: bool) -> None:
    rows = (one_pass.shaped(64, 500, 700), one_pass.flat(3_000_001))
    for grid in (one_pass.shaped(1000, 40, 40), one_pass.shaped(999, 127, 127)) if planes else rows:
        assert grid.planes is planes
        seen = np.zeros(grid.lines * grid.width + grid.rest, np.uint8)
        for first, lines, width, stride in grid.parts():
            for line in range(lines):
                seen[first + line * stride : first + line * stride + width] += 1
        assert (seen == 1).all()
        assert 1 < len(grid.parts()) <= 9


# --- where the machine code is kept ------------------------------------------------------------------------------

PROGRAM = """
import sys
import numpy as np
from tidegauge.compare.statistics import Encoding, measure
sums = measure(np.ones(5, np.int8), np.zeros(5, np.float32), Encoding("int8", 2.0))
print(sums.count, sums.d2, "numba" in sys.modules)
"""


def _run(**environment: str) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")}
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(
        command, env=kept | environment, capture_output=True, text=True, check=True, timeout=300
    ).stdout.strip()


@pytest.mark.slow
def test_code_is_made_once_and_then_runs_without_numba(tmp_path: Path) -> None:
    assert _run(NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "5 1.25 False"
    (kept,) = (tmp_path / "cache").iterdir()
    status = kept.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert _run(NUMBA_CACHE_DIR=str(tmp_path / "cache")) == "5 1.25 False"
    assert kept.stat().st_mtime_ns == status.st_mtime_ns


@pytest.mark.slow
def test_without_a_home_it_runs_and_keeps_nothing() -> None:
    assert _run() == "5 1.25 False"


def test_a_compilation_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'Traceback' >&2\necho 'LLVM ERROR: out of memory' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(os, "environ", {})
    machine_code._ready.pop("uint32", None)
    with pytest.raises(TidegaugeError, match=r"can't be compiled .*LLVM ERROR: out of memory"):
        machine_code.sweep("uint32")


def test_the_folder_is_the_first_that_can_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert machine_code.cache_folder({}) is None
    assert machine_code.cache_folder({"NUMBA_CACHE_DIR": str(blocked / "below")}) is None
    assert machine_code.cache_folder({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "tidegauge"
    assert machine_code.cache_folder({"CACHE_DIRECTORY": f"{tmp_path}/a:{tmp_path}/b"}) == tmp_path / "a"


def test_code_that_others_may_have_written_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "code.o"
    machine_code.keep(file, b"code")
    assert machine_code.read(file) == b"code"
    file.chmod(0o666)
    assert machine_code.read(file) is None
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert machine_code.cache_folder({"NUMBA_CACHE_DIR": str(open_to_all)}) is None


def test_damaged_code_is_not_run(tmp_path: Path) -> None:
    file = tmp_path / "code.o"
    machine_code.keep(file, b"code")
    content = file.read_bytes()
    for damaged in (content[:-1], content[:10], b"", content[:-1] + b"f"):
        file.write_bytes(damaged)
        assert machine_code.read(file) is None
