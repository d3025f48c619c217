"""Zip files from people: what is unpacked stays inside and within its limit, whatever the file says."""

from __future__ import annotations

import io
import stat
import struct
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.zip_directory import check_directory
from tidegauge.collector.trace_folder import look_into
from tidegauge.collector.unpacking import BadZip, unpack_zip
from tidegauge.errors import TidegaugeError


def zipped(folder: Path, *members: tuple[str, bytes], name: str = "a.zip") -> Path:
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members:
            archive.writestr(member, data)
    return folder / name


def unpacked(file: Path, limit: int = 1 << 20) -> Path:
    folder = file.parent / "in"
    folder.mkdir()
    unpack_zip(file, folder, limit)
    return folder


def test_files_and_folders_are_unpacked_without_litter(tmp_path: Path) -> None:
    members = (("a/", b""), ("a/b c.y", b"1"), ("d.bin", b"22"), ("__MACOSX/a/x", b"3"), ("a/.DS_Store", b"4"))
    folder = unpacked(zipped(tmp_path, *members))
    assert {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        "a/b c.y": b"1",
        "d.bin": b"22",
    }


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/x",
        "//x",
        "a//x",
        "./x",
        "a\\..\\x",
        "C:/x",
        "c:x",
        "a/\x01",
        "a\x00b",
        "/".join("abcdefghi"),
    ],
)
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    file = zipped(tmp_path, ("good", b"1"), ("n" * len(name.encode()), b"2"))
    data = file.read_bytes().replace(b"n" * len(name.encode()), name.encode())  # as ZipInfo would not write it
    file.write_bytes(data)
    with pytest.raises(BadZip, match="no plain file inside it"):
        unpacked(file)
    assert not (tmp_path / "x").exists()


def test_links_and_encrypted_files_are_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(BadZip, match="no plain file"):
        unpacked(tmp_path / "a.zip")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_one_name_twice_is_refused_also_where_only_letters_case_differs(tmp_path: Path) -> None:
    for number, pair in enumerate((("a", "a"), ("A", "a"), ("a", "a/b"))):
        place = tmp_path / str(number)
        place.mkdir()
        with pytest.raises(BadZip, match="twice"):
            unpacked(zipped(place, *((name, b"1") for name in pair)))


def test_bombs_stop_at_the_limit(tmp_path: Path) -> None:
    file = zipped(tmp_path, ("zeros", bytes(1 << 22)))
    assert file.stat().st_size < 10_000
    with pytest.raises(BadZip, match="more than 1048576 bytes"):
        unpacked(file)
    data = bytearray(file.read_bytes())  # now it lies about its size, in both places
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        struct.pack_into("<I", data, data.index(signature) + offset, 10)
    lying = tmp_path / "lying"
    lying.mkdir()
    (lying / "a.zip").write_bytes(data)
    with pytest.raises(BadZip):
        unpacked(lying / "a.zip")
    assert sum(path.stat().st_size for path in (lying / "in").rglob("*")) <= 1 << 20


def test_directory_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    file = zipped(tmp_path, *((f"{number}", b"") for number in range(50)))
    check_directory(file, 50)
    with pytest.raises(BundleError, match="at most 49"):
        check_directory(file, 49)
    data = bytearray(file.read_bytes())
    struct.pack_into("<HH", data, len(data) - 14, 1, 1)  # says one member, and has fifty
    struct.pack_into("<I", data, len(data) - 10, 1 << 30)
    file.write_bytes(data)
    for read in (lambda: check_directory(file, 50), lambda: import_bundle(file, tmp_path / "bundle")):
        with pytest.raises(BundleError):
            read()


@given(
    data=st.binary(max_size=300),
    names=st.lists(st.text(max_size=12), max_size=4, unique=True),
    cuts=st.tuples(st.integers(0, 400), st.integers(0, 400), st.binary(max_size=4)),
)
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_unpacked_inside_or_refused(
    data: bytes, names: list[str], cuts: tuple[int, int, bytes]
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(zipfile.ZipInfo(name or "x"), data)
    start, length, instead = cuts
    whole = out.getvalue()
    with tempfile.TemporaryDirectory() as place:
        file, inside = Path(place) / "a.zip", Path(place) / "in"
        file.write_bytes(whole[:start] + instead + whole[start + length :] if instead else whole)
        inside.mkdir()
        try:
            written = unpack_zip(file, inside, 2000)
        except BadZip:
            written = -1
        found = [path for path in Path(place).rglob("*") if path.is_file() and path != file]
        assert all(path.resolve().is_relative_to(inside) and not path.is_symlink() for path in found)
        assert written < 0 or written == sum(path.stat().st_size for path in found)


def test_what_a_comparison_needs_is_found_wherever_it_lies(tmp_path: Path) -> None:
    with pytest.raises(TidegaugeError, match="no TIDL trace"):
        look_into(tmp_path)
    trace = "C7x_1_tidl_trace_subgraph_0_0001_0001_0001_00003_00008_00008x00008.y"
    for place in ("run/a", "run/b"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / trace).write_bytes(b"1")
    (tmp_path / "art" / "tempDir").mkdir(parents=True)
    (tmp_path / "art" / "tempDir" / "subgraph_0_tidl_net.bin.layer_info.txt").write_text("")
    (tmp_path / "m.onnx").write_bytes(b"1")
    (tmp_path / "art" / "input.npy").write_bytes(b"1")
    found = look_into(tmp_path)
    assert (found.traces, found.tempdir) == (tmp_path / "run", tmp_path / "art" / "tempDir")
    assert (found.model, found.input) == (tmp_path / "m.onnx", tmp_path / "art" / "input.npy")
    (tmp_path / "run/a/input.npy").write_bytes(b"1")
    assert look_into(tmp_path).input is None, "beside the traces it is found by itself"
    (tmp_path / "n.tflite").write_bytes(b"1")
    with pytest.raises(TidegaugeError, match="2 models"):
        look_into(tmp_path)
