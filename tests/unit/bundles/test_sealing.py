"""Sealed blobs: only the key opens them, and nothing but what was sealed comes out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import zstandard
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge import signing
from tidegauge.bundles import sealing
from tidegauge.bundles.archive import export_bundle, import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Blob, Manifest, StoredFile, StoredTensor
from tidegauge.bundles.opening import decrypt
from tidegauge.bundles.reader import decode_blob, read_blob
from tidegauge.bundles.sealing import HEADER, PIECE, TAG, Sealed, Sealer, sealed_size, unseal
from tidegauge.bundles.writer import BundleWriter
from tidegauge.cli.keys import command as keys

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()


def seal(data: bytes, pieces: int = 1) -> bytes:
    out = bytearray()
    sealer = Sealer(PUBLIC, out.extend)
    for start in range(0, len(data), max(1, len(data) // pieces)):
        sealer.write(data[start : start + max(1, len(data) // pieces)])
    sealer.finish()
    return bytes(out)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5])
def test_what_goes_in_comes_out(size: int) -> None:
    data = bytes(i % 251 for i in range(size))
    sealed = seal(data, 3)
    assert len(sealed) == sealed_size(size)
    assert unseal(sealed, KEY) == data
    assert size < 32 or data[:32] not in sealed
    assert seal(data) != sealed, "no two are equal, so that nobody sees that a scene has come again"


def test_the_layout_is_what_the_docs_say() -> None:
    """Opened by hand, from docs/formats.md."""
    data = bytes(PIECE) + b"the end"
    sealed = seal(data)
    assert sealed[:8] == b"TGSEAL01"
    recipient, ephemeral = sealed[8:40], sealed[40:72]
    shared = KEY.exchange(X25519PublicKey.from_public_bytes(ephemeral))
    key = HKDF(SHA256(), 32, salt=ephemeral + recipient, info=b"tidegauge sealed blob v1").derive(shared)
    cipher = ChaCha20Poly1305(key)
    first = cipher.decrypt(bytes(12), sealed[72 : 72 + PIECE + 16], None)
    last = cipher.decrypt(bytes(10) + b"\x01\x01", sealed[72 + PIECE + 16 :], None)
    assert first + last == data


def test_what_another_program_sealed_is_opened() -> None:
    """Sealed by hand with OpenSSL, from docs/formats.md: what boards with other releases have sent."""
    own = X25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
    ephemeral = own.public_key().public_bytes_raw()
    salt = ephemeral + bytes.fromhex(PUBLIC)
    key = HKDF(SHA256(), 32, salt=salt, info=b"tidegauge sealed blob v1").derive(own.exchange(KEY.public_key()))
    cipher, data = ChaCha20Poly1305(key), bytes(range(256)) * 256
    pieces = cipher.encrypt(bytes(12), data, None) + cipher.encrypt(bytes(10) + b"\x01\x01", b"the end", None)
    assert unseal(b"TGSEAL01" + bytes.fromhex(PUBLIC) + ephemeral + pieces, KEY) == data + b"the end"


def test_to_seal_loads_one_small_library() -> None:
    code = f"""
import sys
from tidegauge.bundles.sealing import Sealer, is_recipient
assert is_recipient({PUBLIC!r}) and not is_recipient({"00" * 32!r})
sealer = Sealer({PUBLIC!r}, lambda data: None)
sealer.write(bytes(100_000))
sealer.finish()
print([name for name in ("nacl", "cryptography") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['nacl']"


#: Points of small order, as RFC 7748 §7 and its readers list them: with such a "key" the secret is zero.
SMALL_ORDER = (
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
    "ed" + "ff" * 30 + "7f",
    "ee" + "ff" * 30 + "7f",
)


@pytest.mark.parametrize("top", [0, 0x80])
@pytest.mark.parametrize("point", SMALL_ORDER)
def test_points_of_small_order_are_refused_by_both_sides(point: str, top: int) -> None:
    raw = bytes.fromhex(point)
    raw = raw[:31] + bytes([raw[31] | top])
    assert not sealing.is_recipient(raw.hex())
    sealed = seal(b"x")
    with pytest.raises(BundleError, match="nothing can be encrypted"):
        unseal(sealed[:40] + raw + sealed[72:], KEY)


@given(at=st.integers(0, 10**6), bit=st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_any_changed_bit_is_found(at: int, bit: int) -> None:
    sealed = bytearray(seal(b"a picture" * 20))
    sealed[at % len(sealed)] ^= 1 << bit
    with pytest.raises(BundleError):
        unseal(bytes(sealed), KEY)


def test_pieces_can_not_be_cut_off_swapped_or_added() -> None:
    sealed = seal(bytes(3 * PIECE))
    step = PIECE + TAG
    body = [sealed[HEADER + i * step : HEADER + (i + 1) * step] for i in range(3)]
    head = sealed[:HEADER]
    for forged in (head + body[0], head + body[1] + body[0] + body[2], sealed + body[2], sealed[:-1], head):
        with pytest.raises(BundleError):
            unseal(forged, KEY)


def test_another_key_is_told_which_one_it_is_for() -> None:
    with pytest.raises(BundleError, match=PUBLIC[:16]):
        unseal(seal(b"x"), X25519PrivateKey.generate())


@pytest.mark.parametrize("public", ["", "00" * 32, "01" + "00" * 31, "zz" * 32, PUBLIC.upper(), PUBLIC[:-1]])
def test_keys_that_everybody_could_open_are_refused(public: str) -> None:
    assert not sealing.is_recipient(public)
    assert sealing.is_recipient(PUBLIC)


def test_a_bundle_is_sealed_where_it_shows_and_opened_by_the_key(
    tmp_path: Path, make_bundle: Callable[[Path], Manifest]
) -> None:
    like = make_bundle(tmp_path / "like")
    writer = BundleWriter(tmp_path / "board", recipient=PUBLIC)
    shown = writer.add_bytes(b"what a camera saw" * 50, shows=True)
    manifest = msgspec.structs.replace(
        like,
        inputs=(StoredTensor(like.inputs[0].spec, shown),),
        traces=(),
        model=StoredFile("m.onnx", writer.add_bytes(b"the model", "raw", shows=False)),
    )
    writer.seal(manifest)
    assert manifest.model is not None
    assert shown.encoding == "sealed"
    assert manifest.model.blob.encoding == "raw"
    with pytest.raises(Sealed, match="bundle decrypt"):
        read_blob(tmp_path / "board", shown, 1 << 20)
    export_bundle(tmp_path / "board", tmp_path / "a.tidebundle")
    import_bundle(tmp_path / "a.tidebundle", tmp_path / "copy")
    plain = decrypt(tmp_path / "copy", tmp_path / "plain", KEY)
    assert plain.signature is None
    assert plain.model == manifest.model
    assert read_blob(tmp_path / "plain", plain.inputs[0].blob, 1 << 20) == b"what a camera saw" * 50
    with pytest.raises(BundleError, match="nothing that is encrypted"):
        decrypt(tmp_path / "plain", tmp_path / "again", KEY)
    with pytest.raises(BundleError, match="not to"):
        decrypt(tmp_path / "copy", tmp_path / "wrong", X25519PrivateKey.generate())
    assert not (tmp_path / "wrong").exists()


def test_a_sealed_bomb_costs_what_its_manifest_says() -> None:
    data = seal(zstandard.compress(bytes(1 << 26)))
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data), 100, "sealed")
    with pytest.raises(BundleError):
        decode_blob(data, blob, KEY)


def test_keys_for_pictures(tmp_path: Path) -> None:
    path = tmp_path / "pictures.key"
    done = CliRunner().invoke(keys, ["new", "--for", "pictures", str(path)])
    assert done.exit_code == 0, done.output
    assert path.stat().st_mode & 0o777 == 0o600
    public = sealing.load(path).public_key().public_bytes_raw().hex()
    assert public in done.output
    with pytest.raises(signing.KeyUnusable, match="not of the kind Ed25519"):
        signing.load(path)
    signing.create(tmp_path / "operator.key")
    with pytest.raises(signing.KeyUnusable, match="X25519"):
        sealing.load(tmp_path / "operator.key")
    path.chmod(0o640)
    with pytest.raises(signing.KeyUnusable, match="chmod 600"):
        sealing.load(path)
