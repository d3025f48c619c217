"""`.tidebundle` files: the same content there and back, and each rule for input from elsewhere."""

from __future__ import annotations

import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegauge.bundles import layout
from tidegauge.bundles.archive import export_bundle, import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import blobs_of
from tidegauge.bundles.reader import read_manifest

Members = list[tuple[zipfile.ZipInfo, bytes]]


@pytest.fixture
def exported(tmp_path: Path, make_bundle: Any) -> Path:
    make_bundle(tmp_path / "bundle")
    export_bundle(tmp_path / "bundle", tmp_path / "b.tidebundle")
    return tmp_path / "b.tidebundle"


def members(file: Path) -> Members:
    with zipfile.ZipFile(file) as archive:
        return [(zipfile.ZipInfo(info.filename), archive.read(info)) for info in archive.infolist()]


def write(file: Path, content: Members) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for info, data in content:
            archive.writestr(info, data)
    return file


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_there_and_back(tmp_path: Path, exported: Path) -> None:
    told: list[int] = []
    manifest = import_bundle(exported, tmp_path / "again", progress=told.append)
    assert manifest == read_manifest(tmp_path / "bundle")
    assert tree(tmp_path / "again") == tree(tmp_path / "bundle")
    assert sum(told) == sum(blob.stored for blob in blobs_of(manifest).values())
    export_bundle(tmp_path / "again", tmp_path / "c.tidebundle")
    assert (tmp_path / "c.tidebundle").read_bytes() == exported.read_bytes()
    with zipfile.ZipFile(exported) as archive:
        infos = archive.infolist()
    assert infos[0].filename == "manifest.json"
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}


def test_export_refuses_what_is_not_whole(tmp_path: Path, make_bundle: Any) -> None:
    manifest = make_bundle(tmp_path / "bundle")
    path = layout.blob_path(tmp_path / "bundle", manifest.inputs[0].blob.sha256)
    data = path.read_bytes()
    path.write_bytes(bytes(len(data)))
    with pytest.raises(BundleError, match="damaged"):
        export_bundle(tmp_path / "bundle", tmp_path / "b")
    path.unlink()
    with pytest.raises(BundleError, match="lacks 1 blobs"):
        export_bundle(tmp_path / "bundle", tmp_path / "b")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["bundle"]


def test_nothing_is_overwritten(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(BundleError, match="exists"):
        export_bundle(tmp_path / "bundle", exported)
    with pytest.raises(BundleError, match="exists"):
        import_bundle(exported, tmp_path / "bundle")


def _compressed(content: Members) -> None:
    content[1][0].compress_type = zipfile.ZIP_DEFLATED


def _symlink(content: Members) -> None:
    content[1][0].external_attr = (stat.S_IFLNK | 0o777) << 16


def _renamed(name: str) -> Callable[[Members], None]:
    def change(content: Members) -> None:
        content[1] = (zipfile.ZipInfo(name), content[1][1])

    return change


def _extra(content: Members) -> None:
    content.append((zipfile.ZipInfo(f"{layout.BLOBS}/{'0' * 64}"), b"x"))


def _missing(content: Members) -> None:
    del content[-1]


def _manifest_last(content: Members) -> None:
    content.append(content.pop(0))


def _other_content(content: Members) -> None:
    content[1] = (content[1][0], bytes(len(content[1][1])))


def _longer(content: Members) -> None:
    content[1] = (content[1][0], content[1][1] + b"x")


def _bad_manifest(content: Members) -> None:
    content[0] = (content[0][0], b"{}")


def _empty(content: Members) -> None:
    content.clear()


@pytest.mark.parametrize(
    "change",
    [
        _compressed,
        _symlink,
        _renamed("../evil"),
        _renamed("/etc/passwd"),
        _renamed("blobs/sha256/../../../evil"),
        _renamed(f"{layout.BLOBS}/{'A' * 64}"),
        _extra,
        _missing,
        _manifest_last,
        _other_content,
        _longer,
        _bad_manifest,
        _empty,
    ],
)
def test_forged_archives_are_refused(tmp_path: Path, exported: Path, change: Callable[[Members], None]) -> None:
    content = members(exported)
    change(content)
    forged = write(tmp_path / "forged.tidebundle", content)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(BundleError):
        import_bundle(forged, tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before, "a refused archive leaves something behind"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_members_are_refused(tmp_path: Path, exported: Path) -> None:
    content = members(exported)
    with pytest.raises(BundleError, match="twice"):
        import_bundle(write(tmp_path / "f", [*content, content[-1]]), tmp_path / "out")


def test_limits(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(BundleError, match="limit"):
        import_bundle(exported, tmp_path / "out", limit=100)
    many = [(zipfile.ZipInfo(f"{layout.BLOBS}/{number:064x}"), b"") for number in range(4097)]
    with pytest.raises(BundleError, match="members"):
        import_bundle(write(tmp_path / "f", many), tmp_path / "out")


def test_absent_file(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        import_bundle(tmp_path / "none", tmp_path / "out")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_anywhere_is_refused_or_harmless(tmp_path: Path, exported: Path, data: st.DataObject) -> None:
    whole = exported.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    raw = bytearray(whole)
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] ^= data.draw(st.integers(1, 255))
    damaged, out = tmp_path / "damaged", tmp_path / f"out-{at}-{len(raw)}-{hash(bytes(raw))}"
    damaged.write_bytes(raw)
    if out.exists():
        return
    try:
        manifest = import_bundle(damaged, out)
    except BundleError:
        assert not out.exists()
        return
    for name, blob in blobs_of(manifest).items():
        assert layout.blob_path(out, name).stat().st_size == blob.stored
