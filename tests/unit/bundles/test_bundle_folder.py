"""Writer and reader: what is sealed is read back; what is damaged or forged is refused, in bounded memory."""

from __future__ import annotations

import hashlib
import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Blob, Manifest, blobs_of
from tidegauge.bundles.reader import decode_blob, decode_manifest, missing_blobs, read_blob, read_manifest
from tidegauge.bundles.writer import BundleWriter

LIMIT = 1 << 20


def blob_of(stored: bytes, size: int, encoding: Any = "zstd") -> Blob:
    return Blob(hashlib.sha256(stored).hexdigest(), len(stored), size, encoding)


def test_round_trip(tmp_path: Path, make_bundle: Any) -> None:
    manifest = make_bundle(tmp_path)
    assert read_manifest(tmp_path) == manifest
    assert missing_blobs(tmp_path, manifest) == []
    assert read_blob(tmp_path, manifest.inputs[0].blob, LIMIT) == bytes(768)
    assert manifest.model is not None
    assert manifest.model.blob.sha256 == hashlib.sha256(b"the model").hexdigest()
    assert read_blob(tmp_path, manifest.model.blob, LIMIT) == b"the model"
    trace = manifest.traces[0]
    assert trace.blob is not None
    codes = read_blob(tmp_path, trace.blob, LIMIT)
    assert hashlib.sha256(codes).hexdigest() == trace.sha256
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blobs", "manifest.json"]


@pytest.mark.parametrize("encoding", ["zstd", "raw"])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_file_and_bytes_give_the_same_blob(tmp_path: Path, encoding: Any, size: int) -> None:
    data = os.urandom(size // 2) + bytes(size - size // 2)
    source = tmp_path / "source"
    source.write_bytes(data)
    writer = BundleWriter(tmp_path / "bundle")
    blob = writer.add_file(source, encoding)
    assert blob == writer.add_bytes(data, encoding)
    assert read_blob(tmp_path / "bundle", blob, 4_000_000) == data
    assert len(list(layout.blobs_folder(tmp_path / "bundle").iterdir())) == 1


def test_seal_refuses_a_missing_blob_and_leaves_no_manifest(tmp_path: Path, make_bundle: Any) -> None:
    manifest = make_bundle(tmp_path / "whole")
    writer = BundleWriter(tmp_path / "bare")
    with pytest.raises(BundleError, match="missing"):
        writer.seal(manifest)
    assert not layout.manifest_path(tmp_path / "bare").exists()


@pytest.mark.parametrize("changes", [{"bundle_id": "../../etc"}, {"device": "a/b"}, {"schema": 0}])
def test_seal_refuses_what_a_reader_would(tmp_path: Path, make_bundle: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(BundleError, match="schema"):
        make_bundle(tmp_path, **changes)


def test_the_manifest_comes_last_and_everything_is_synced(
    tmp_path: Path, make_bundle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    manifest = make_bundle(tmp_path)
    blobs = {str(layout.blob_path(tmp_path, name)) for name in blobs_of(manifest)}
    manifest_at = next(i for i, name in enumerate(synced) if Path(name).name.startswith(".manifest"))
    assert blobs | {str(layout.blobs_folder(tmp_path)), str(tmp_path)} <= set(synced[:manifest_at])
    assert synced[-1] == str(tmp_path)


def test_another_schema_names_the_cure(tmp_path: Path, make_bundle: Any) -> None:
    make_bundle(tmp_path)
    raw = msgspec.json.decode(layout.manifest_path(tmp_path).read_bytes())
    with pytest.raises(BundleError, match="update"):
        decode_manifest(msgspec.json.encode({**raw, "schema": 2, "unknown": 1}), "x")
    with pytest.raises(BundleError, match="damaged"):
        decode_manifest(msgspec.json.encode({key: raw[key] for key in raw if key != "device"}), "x")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_manifest_is_refused_or_read(tmp_path: Path, make_bundle: Any, data: st.DataObject) -> None:
    """Cut, or with a byte changed, anywhere: a `BundleError`, or a manifest that is still valid."""
    path = layout.manifest_path(tmp_path)
    if not path.exists():
        make_bundle(tmp_path)
    raw = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        del raw[at:]
    else:
        raw[at] = data.draw(st.integers(0, 255))
    try:
        manifest = decode_manifest(bytes(raw), "x")
    except BundleError:
        return
    assert isinstance(manifest, Manifest)


@pytest.mark.parametrize("depth", [10, 100_000])
def test_nesting_is_refused(depth: int) -> None:
    with pytest.raises(BundleError):
        decode_manifest(b'{"schema":1,"x":' + b"[" * depth + b"]" * depth + b"}", "x")


def test_damaged_blob(tmp_path: Path, make_bundle: Any) -> None:
    manifest = make_bundle(tmp_path)
    blob = manifest.inputs[0].blob
    path = layout.blob_path(tmp_path, blob.sha256)
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(BundleError, match="damaged"):
        read_blob(tmp_path, blob, LIMIT)
    path.write_bytes(good + b"x")
    with pytest.raises(BundleError, match="limit"):
        read_blob(tmp_path, blob, LIMIT)
    assert missing_blobs(tmp_path, manifest) == [blob]
    path.unlink()
    with pytest.raises(BundleError, match="does not exist"):
        read_blob(tmp_path, blob, LIMIT)
    path.symlink_to("/etc/hostname")
    with pytest.raises(BundleError):
        read_blob(tmp_path, blob, LIMIT)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleError, match="regular"):
        read_blob(tmp_path, blob, LIMIT)


def test_limit(tmp_path: Path, make_bundle: Any) -> None:
    blob = make_bundle(tmp_path).inputs[0].blob
    assert len(read_blob(tmp_path, blob, 768)) == 768
    with pytest.raises(BundleError, match="limit"):
        read_blob(tmp_path, blob, 767)


def test_bombs_are_refused() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 << 20))
    tracemalloc.start()
    for stored in (bomb, silent):
        with pytest.raises(BundleError):
            decode_blob(stored, blob_of(stored, 1000))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20, "it was unpacked before it was refused"
    tracemalloc.stop()
    wide = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=False)
    ).compressobj()
    stored = wide.compress(os.urandom(1000)) + wide.flush()
    with pytest.raises(BundleError):
        decode_blob(stored, blob_of(stored, 1000))


@pytest.mark.parametrize("size", [0, 5, 999, 1001])
def test_wrong_sizes_are_refused(size: int) -> None:
    for known in (True, False):
        stored = zstandard.ZstdCompressor(write_content_size=known).compress(bytes(1000))
        with pytest.raises(BundleError):
            decode_blob(stored, blob_of(stored, size))


def test_two_frames_are_not_a_blob() -> None:
    one = zstandard.ZstdCompressor().compress(b"abc")
    with pytest.raises(BundleError):
        decode_blob(one + one, blob_of(one + one, 3))
    with pytest.raises(BundleError):
        decode_blob(b"", blob_of(b"", 0))
    assert decode_blob(b"", blob_of(b"", 0, "raw")) == b""


def test_a_hash_that_is_a_path_is_refused(tmp_path: Path) -> None:
    for name in ("../" * 20 + "etc", "A" * 64, "", "a" * 63 + "/"):
        with pytest.raises(ValueError, match="SHA-256"):
            layout.blob_path(tmp_path, name)
