"""Traps of a bundle that comes from elsewhere: each number, shape, count and cut that a reader could believe."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegauge.bundles import layout
from tidegauge.bundles.archive import export_bundle, import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import decode_manifest
from tidegauge.bundles.signature import check

MakeBundle = Callable[..., Manifest]
MEMBERS = 100_000


def directory(members: int) -> bytes:
    """A zip of so many empty members, as its directory alone and in ZIP64 (APPNOTE 4.3.12, 4.3.14 to 4.3.16)."""
    entries = b"".join(
        struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 33, 0, 0, 0, 77, 0, 0, 0, 0, 0, 0)
        + f"blobs/sha256/{number:064x}".encode()
        for number in range(members)
    )
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, members, members, len(entries), 0)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(entries), 1)
    return entries + end + locator + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 65535, 65535, 2**32 - 1, 2**32 - 1, 0)


def test_a_hundred_thousand_members_are_refused_before_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "many.tidebundle"
    file.write_bytes(directory(MEMBERS))
    with zipfile.ZipFile(file) as archive:
        assert len(archive.infolist()) == MEMBERS, "it is no such archive: this test shows nothing"
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match=f"{MEMBERS} members"):
            import_bundle(file, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_manifest_of_a_hundred_thousand_blobs_is_refused_before_it_is_read(tmp_path: Path, make_bundle: Any) -> None:
    make_bundle(tmp_path / "bundle")
    raw = json.loads(layout.manifest_path(tmp_path / "bundle").read_bytes())
    blob = raw["model"]["blob"]
    raw["artifacts"] = [{"name": str(n), "blob": {**blob, "sha256": f"{n:064x}"}} for n in range(MEMBERS)]
    data = json.dumps(raw).encode()
    tracemalloc.start()
    try:
        with pytest.raises(BundleError, match=r"more members than|larger than"):
            decode_manifest(data, "x")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_manifest_cut_off_at_every_byte_is_refused_by_name(tmp_path: Path, make_bundle: Any) -> None:
    make_bundle(tmp_path)
    raw = layout.manifest_path(tmp_path).read_bytes()
    check(raw, decode_manifest(raw, "x"))
    for at in range(len(raw)):
        with pytest.raises(BundleError, match="damaged"):
            decode_manifest(raw[:at], "x")


def test_an_archive_cut_off_anywhere_is_refused_and_leaves_nothing(tmp_path: Path, make_bundle: Any) -> None:
    make_bundle(tmp_path / "bundle")
    file, cut = tmp_path / "b.tidebundle", tmp_path / "cut.tidebundle"
    export_bundle(tmp_path / "bundle", file)
    raw = file.read_bytes()
    for at in [*range(0, len(raw), 61), *range(len(raw) - 22, len(raw))]:  # the end record's every byte
        cut.write_bytes(raw[:at])
        with pytest.raises(BundleError):
            import_bundle(cut, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tidebundle", "bundle", "cut.tidebundle"]


@pytest.mark.parametrize(
    "spec",
    [
        {"shape": [-1, -768]},  # their product is right
        {"shape": [1 << 62, 4, 768]},  # it is, in 64 bits
        {"shape": [1 << 70]},
        {"shape": [0, 1 << 62]},
        {"shape": [1] * 9},
        {"dtype": "object"},
        {"dtype": "float64"},
        {"shape": [1.5]},
        {"shape": "12"},
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, make_bundle: Any, spec: dict[str, Any]) -> None:
    make_bundle(tmp_path)
    raw = json.loads(layout.manifest_path(tmp_path).read_bytes())
    raw["inputs"][0]["spec"] |= spec
    with pytest.raises(BundleError, match=r"impossible shape|damaged"):
        decode_manifest(json.dumps(raw).encode(), "x")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize("where", ["loss", "cause", "created"])
def test_numbers_that_are_none_are_refused(tmp_path: Path, make_bundle: Any, number: str, where: str) -> None:
    make_bundle(tmp_path)
    raw = json.loads(layout.manifest_path(tmp_path).read_bytes())
    if where == "loss":
        raw["loss"] = "@"
    elif where == "cause":
        raw["cause"]["evidence"]["loss"] = "@"
    else:
        raw["created"]["wall"] = "@"
    with pytest.raises(BundleError, match="damaged"):
        decode_manifest(json.dumps(raw).replace('"@"', number).encode(), "x")
