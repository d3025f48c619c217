"""Signed manifests: any change of any byte is seen; later members don't matter; the form admits one reading only."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from integration.link_peer import put_bundle
from tidegauge import signing
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import decode_manifest
from tidegauge.bundles.signature import BadSignature, check, sign, signed_part
from tidegauge.spool.limits import SpoolLimits
from tidegauge.spool.store import Spool


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signed")


@pytest.fixture(scope="module")
def key(folder: Path) -> signing.FileKey:
    return signing.create(folder / "device.key")


@pytest.fixture(scope="module")
def manifest(folder: Path) -> Manifest:
    return put_bundle(Spool(folder / "spool", SpoolLimits(headroom_mib=0, headroom_files=0)), "bundle-0001", (100,))


@pytest.fixture(scope="module")
def signed(manifest: Manifest, key: signing.FileKey) -> bytes:
    return msgspec.json.encode(sign(manifest, key))


def test_the_signature_is_the_keys(signed: bytes, key: signing.FileKey, manifest: Manifest) -> None:
    assert check(signed, decode_manifest(signed, "x")) == key.public
    assert check(msgspec.json.encode(manifest), manifest) == ""


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_changed_byte_is_seen(data: st.DataObject, signed: bytes, key: signing.FileKey) -> None:
    at = data.draw(st.integers(0, len(signed) - 1))
    changed = bytearray(signed)
    changed[at] = data.draw(st.integers(32, 126))
    if bytes(changed) == signed:
        return
    with contextlib.suppress(BadSignature, msgspec.DecodeError, UnicodeDecodeError):
        assert check(bytes(changed), msgspec.json.decode(bytes(changed), type=Manifest)) != key.public


def test_a_member_that_this_version_does_not_know_is_signed_too(signed: bytes, manifest: Manifest) -> None:
    members = msgspec.json.decode(msgspec.json.encode(manifest), type=dict[str, msgspec.Raw])
    later = {**members, "novelty": msgspec.Raw(b'{"x":[1,2.50]}')}
    assert b'"novelty":{"x":[1,2.50]}' in signed_part(msgspec.json.encode(later))
    with_it = signed[:-1] + b',"novelty":1}'
    with pytest.raises(BadSignature):
        check(with_it, decode_manifest(with_it, "x"))


def test_one_document_has_one_reading(signed: bytes, manifest: Manifest) -> None:
    """A member that comes twice, or white space between: other readers might take another one."""
    for other in (
        signed[:-1] + b',"device":"cam-8"}',
        signed.replace(b'"device":', b'"device": '),
        signed + b"\n",
        json.dumps(json.loads(signed), indent=1).encode(),
    ):
        with pytest.raises(BadSignature):
            check(other, msgspec.structs.replace(decode_manifest(signed, "x")))


def test_another_keys_signature_is_another_keys(manifest: Manifest, folder: Path, key: signing.FileKey) -> None:
    thief = signing.create(folder / "thief.key")
    data = msgspec.json.encode(sign(manifest, thief))
    assert check(data, decode_manifest(data, "x")) == thief.public
    claimed = data.replace(thief.public.encode(), key.public.encode())
    with pytest.raises(BadSignature):
        check(claimed, decode_manifest(claimed, "x"))


def test_keys_that_others_may_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    signing.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(signing.KeyUnusable, match="exists already"):
        signing.create(path)
    path.chmod(0o640)
    with pytest.raises(signing.KeyUnusable, match="chmod 600"):
        signing.load(path)
    path.chmod(0o600)
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\n")
    with pytest.raises(signing.KeyUnusable, match="no private key"):
        signing.load(path)
