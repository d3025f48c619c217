"""Ed25519 of boards and operators: the keys and signatures of every other library, and no signature that is doubtful.

`cryptography` (OpenSSL) stands for whoever else signs or checks.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegauge import signing
from tidegauge.signing import FileKey, KeyUnusable, Use, verify

# Arithmetic on the curve (RFC 8032 §5.1), for signatures that no library makes.
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def plus(a: Point, b: Point) -> Point:
    both = D * a[0] * b[0] * a[1] * b[1] % P
    x = (a[0] * b[1] + b[0] * a[1]) * pow(1 + both, -1, P)
    return x % P, (a[1] * b[1] + a[0] * b[0]) * pow(1 - both, -1, P) % P


def times(factor: int, point: Point) -> Point:
    result = NEUTRAL
    for bit in bin(factor)[2:]:
        result = plus(result, result)
        result = plus(result, point) if bit == "1" else result
    return result


def point(data: bytes) -> Point:
    number = int.from_bytes(data, "little")
    y, odd = number % 2**255, number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * pow(2, (P - 1) // 4, P) % P
    assert x * x % P == square
    return (x if x % 2 == odd else P - x), y


def written(it: Point) -> bytes:
    return (it[1] | (it[0] % 2) << 255).to_bytes(32, "little")


BASE = point(bytes.fromhex("58" + "66" * 31))
#: Of order 8.
SMALL = point(bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"))


def secret(raw: bytes) -> int:
    """The scalar of a private key's 32 bytes."""
    return int.from_bytes(hashlib.sha512(raw).digest()[:32], "little") % 2**254 // 8 * 8 + 2**254


def forged(data: bytes, r: bytes, nonce: int, public: bytes, scalar: int) -> bytes:
    """A signature with a first half of one's own choice, its second half by the rules."""
    challenge = int.from_bytes(hashlib.sha512(r + public + data).digest(), "little")
    return r + ((nonce + challenge * scalar) % ORDER).to_bytes(32, "little")


def openssl_takes(public: bytes, signature: bytes, data: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


RAW = bytes(range(32))
KEY = FileKey(RAW)
DATA = b"what is signed"
SIGNED = Use.ANSWER.value + DATA
seeds = st.binary(min_size=32, max_size=32)


def test_the_first_example_of_the_standard() -> None:
    """RFC 8032 §7.1, test 1: the key; its signature is of the empty text, which is never signed here."""
    key = FileKey(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    assert key.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@settings(max_examples=60, deadline=None)
@given(raw=seeds, data=st.binary(max_size=300), use=st.sampled_from(Use))
def test_both_libraries_make_and_take_the_same_keys_and_signatures(raw: bytes, data: bytes, use: Use) -> None:
    ours, theirs = FileKey(raw), Ed25519PrivateKey.from_private_bytes(raw)
    assert ours.public == theirs.public_key().public_bytes_raw().hex()
    signature = ours.sign(use, data)
    assert type(signature) is bytes
    assert signature == theirs.sign(use.value + data)
    assert verify(ours.public, use, signature, data)
    theirs.public_key().verify(signature, use.value + data)
    assert not any(verify(ours.public, other, signature, data) for other in Use if other is not use)


@settings(max_examples=200, deadline=None)
@given(
    changed=st.tuples(st.sampled_from(("key", "signature", "data")), st.integers(0, 10_000), st.integers(1, 255)),
)
def test_one_changed_byte_is_another_key_signature_or_text(changed: tuple[str, int, int]) -> None:
    what, at, by = changed
    parts = {"key": bytes.fromhex(KEY.public), "signature": KEY.sign(Use.ANSWER, DATA), "data": DATA}
    part = bytearray(parts[what])
    part[at % len(part)] ^= by
    parts[what] = bytes(part)
    assert not verify(parts["key"].hex(), Use.ANSWER, parts["signature"], parts["data"])


@pytest.mark.parametrize("length", [0, 1, 31, 32, 63, 65, 128])
def test_a_signature_of_another_length_is_none(length: int) -> None:
    assert not verify(KEY.public, Use.ANSWER, (KEY.sign(Use.ANSWER, DATA) * 2)[:length], DATA)


@pytest.mark.parametrize("public", ["", "ab", KEY.public[:-2], KEY.public + "00", KEY.public.upper(), "z" * 64])
def test_a_key_that_is_not_written_as_one_has_signed_nothing(public: str) -> None:
    assert not verify(public, Use.ANSWER, KEY.sign(Use.ANSWER, DATA), DATA)


def test_bytes_that_are_no_point_of_the_curve_are_no_key() -> None:
    off = next(y for y in range(2, 99) if pow((y * y - 1) * pow(D * y * y + 1, -1, P), (P - 1) // 2, P) not in (0, 1))
    assert not verify(off.to_bytes(32, "little").hex(), Use.ANSWER, KEY.sign(Use.ANSWER, DATA), DATA)


def test_the_makers_of_doubtful_signatures_make_good_ones_too() -> None:
    """Otherwise their refusal would say nothing."""
    public = bytes.fromhex(KEY.public)
    assert written(times(secret(RAW), BASE)) == public
    good = forged(SIGNED, written(times(5, BASE)), 5, public, secret(RAW))
    assert verify(KEY.public, Use.ANSWER, good, DATA)
    assert openssl_takes(public, good, SIGNED)


def test_no_signature_has_a_second_form() -> None:
    """S + L signs the same as S where nobody looks whether it is below L (RFC 8032 §8.4)."""
    signature = KEY.sign(Use.ANSWER, DATA)
    for more in range(1, 16):
        other = (int.from_bytes(signature[32:], "little") + more * ORDER).to_bytes(33, "little")
        assert other[32] or not verify(KEY.public, Use.ANSWER, signature[:32] + other[:32], DATA)


def test_a_first_half_of_small_order_is_refused() -> None:
    """OpenSSL takes it: whoever has the key can make it. Here it is none."""
    public = bytes.fromhex(KEY.public)
    for factor in range(8):
        r = written(times(factor, SMALL)) if factor else written(NEUTRAL)
        assert not verify(KEY.public, Use.ANSWER, forged(SIGNED, r, 0, public, secret(RAW)), DATA)


def test_a_first_half_outside_of_the_group_is_refused() -> None:
    """With the cofactor in its equation a library would take it, and others, without it, would not."""
    public = bytes.fromhex(KEY.public)
    for factor in range(1, 8):
        r = written(plus(times(5, BASE), times(factor, SMALL)))
        signature = forged(SIGNED, r, 5, public, secret(RAW))
        assert not openssl_takes(public, signature, SIGNED)
        assert not verify(KEY.public, Use.ANSWER, signature, DATA)


def test_a_key_outside_of_the_group_is_taken_no_more_often_than_by_openssl() -> None:
    """Such a key fits by chance, one time in eight, what its maker has signed; nobody else gains by it."""
    taken = []
    for factor in range(1, 8):
        public = written(plus(times(secret(RAW), BASE), times(factor, SMALL)))
        for nonce in range(1, 9):
            signature = forged(SIGNED, written(times(nonce, BASE)), nonce, public, secret(RAW))
            taken.append(openssl_takes(public, signature, SIGNED))
            assert verify(public.hex(), Use.ANSWER, signature, DATA) <= taken[-1]
    assert 0 < sum(taken) < len(taken)


# ---- files ----


def key_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_a_file_of_cryptography_is_read_and_ours_by_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    theirs = Ed25519PrivateKey.generate()
    pem = theirs.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    ours = signing.load(key_file(tmp_path / "theirs.key", pem))
    assert ours.public == theirs.public_key().public_bytes_raw().hex()
    created = signing.create(tmp_path / "ours.key")
    read = load_pem_private_key((tmp_path / "ours.key").read_bytes(), None)
    assert isinstance(read, Ed25519PrivateKey)
    assert created.public == read.public_key().public_bytes_raw().hex() == signing.load(tmp_path / "ours.key").public


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_file_of_openssl_is_read_and_both_check_each_other(tmp_path: Path) -> None:
    def openssl(*arguments: str | Path) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)

    path, public, text, signature = (tmp_path / name for name in ("a.key", "a.pub", "text", "signature"))
    openssl("genpkey", "-algorithm", "ed25519", "-out", path)
    path.chmod(0o600)
    key = signing.load(path)
    openssl("pkey", "-in", path, "-pubout", "-outform", "DER", "-out", public)
    assert public.read_bytes()[-32:].hex() == key.public
    text.write_bytes(SIGNED)
    openssl("pkeyutl", "-sign", "-inkey", path, "-rawin", "-in", text, "-out", signature)
    assert verify(key.public, Use.ANSWER, signature.read_bytes(), DATA)
    signature.write_bytes(key.sign(Use.ANSWER, DATA))
    openssl("pkeyutl", "-verify", "-inkey", path, "-rawin", "-in", text, "-sigfile", signature)


@pytest.mark.parametrize("form", ["other line lengths", "CRLF", "text before it", "without a last newline"])
def test_the_same_key_written_down_otherwise_is_the_same_key(tmp_path: Path, form: str) -> None:
    signing.create(tmp_path / "a.key")
    begin, body, end = (tmp_path / "a.key").read_bytes().splitlines()
    data = {
        "other line lengths": b"\n".join((begin, body[:40], body[40:], end, b"")),
        "CRLF": b"\r\n".join((begin, body, end, b"")),
        "text before it": b"\n".join((b"of board 7", begin, body, end, b"")),
        "without a last newline": b"\n".join((begin, body, end)),
    }[form]
    assert signing.load(key_file(tmp_path / "b.key", data)).public == signing.load(tmp_path / "a.key").public


def test_other_keys_are_refused_in_a_sentence(tmp_path: Path) -> None:
    pkcs8 = Encoding.PEM, PrivateFormat.PKCS8
    other = X25519PrivateKey.generate().private_bytes(*pkcs8, NoEncryption())
    with pytest.raises(KeyUnusable, match="not of the kind Ed25519"):
        signing.load(key_file(tmp_path / "other.key", other))
    locked = Ed25519PrivateKey.generate().private_bytes(*pkcs8, BestAvailableEncryption(b"word"))
    with pytest.raises(KeyUnusable, match="no private key that can be read"):
        signing.load(key_file(tmp_path / "locked.key", locked))
    with pytest.raises(KeyUnusable, match="no private key that can be read"):
        signing.load(key_file(tmp_path / "raw.key", RAW))


def test_to_sign_and_to_check_with_ones_own_key_loads_one_small_library(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from tidegauge.signing import Use, create, load, verify
create(Path({str(tmp_path / "a.key")!r}))
key = load(Path({str(tmp_path / "a.key")!r}))
print([name for name in ("nacl", "cryptography") if name in sys.modules])
assert verify(key.public, Use.ANSWER, key.sign(Use.ANSWER, b"text"), b"text")
print([name for name in ("nacl", "cryptography") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["[]", "['nacl']"]
