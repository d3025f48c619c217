"""Ed25519 keys (RFC 8032) of boards and operators: a file of their own, and signatures that say what they are for.

What is signed begins with a line that names its use, so that a signature of one use is none of another. A key is known
by its public half, 64 hexadecimal digits: it is short enough to be compared by eye and to stand in a configuration.

libsodium computes, and is loaded by the first signature. `cryptography`, six times its size, is for keys in another
form than `create` writes: an agent that signs with its own key never loads it here.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

from msgspec import Meta

from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from nacl.signing import SigningKey

PublicKey = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

_WRITTEN = re.compile("[0-9a-f]{64}")
#: PKCS #8 of an Ed25519 key (RFC 8410 §7) before its 32 bytes, as `create` and OpenSSL write it.
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
#: A private key's file is some 120 bytes.
_MAX_FILE = 4096


#: Points of small order, the top bit left out: by such a "key" one signature fits any text (by libsodium's
#: list). No private key has one.
_NO_KEYS = frozenset(
    {
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    }
)


class Use(Enum):
    """What a signature is for; the value is the first line of what is signed."""

    MANIFEST = b"tidegauge manifest v1\n"
    COMMAND = b"tidegauge command v1\n"
    ANSWER = b"tidegauge command answer v1\n"
    FILE_RESPONSE = b"tidegauge file response v1\n"


class KeyUnusable(TidegaugeError):
    """A key that can't be used."""


class KeyProvider(Protocol):
    """Whoever holds a private key: a file, or a secure element that never gives it away."""

    @property
    def public(self) -> str:
        """The public half, 64 hexadecimal digits."""

    def sign(self, use: Use, data: bytes) -> bytes:
        """Signature of 64 bytes over the use and `data`."""


class FileKey:
    """A private key in a PEM file (PKCS #8) that only its owner may read; here its 32 bytes (RFC 8032 §5.1.5)."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @cached_property
    def _key(self) -> SigningKey:
        from nacl.signing import SigningKey

        return SigningKey(self._raw)

    @cached_property
    def public(self) -> str:
        return self._key.verify_key.encode().hex()

    def sign(self, use: Use, data: bytes) -> bytes:
        return self._key.sign(use.value + data).signature


def load(path: Path) -> FileKey:
    """Read a private key. Raises KeyUnusable where it isn't one, or where others than its owner may read it."""
    data = _read_secret(path)
    raw = _raw(data)
    if raw is not None:
        return FileKey(raw)
    # Some 9 MB for any other way of writing one down: an agent with its own key never loads them.
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = _decoded(path, data)
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnusable(f"the key {path} is not of the kind Ed25519", "make one by `tidegauge keys new`")
    return FileKey(key.private_bytes_raw())


def read_private(path: Path) -> PrivateKeyTypes:
    """A private key of any kind from a PEM file. Raises KeyUnusable where others than its owner may read it."""
    return _decoded(path, _read_secret(path))


def _read_secret(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_MAX_FILE)
    except OSError as error:
        raise KeyUnusable(
            f"the key {path} can't be read ({error.strerror})", "check its path, owner and mode"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyUnusable(f"the key {path} may be read or written by others than its owner", f"chmod 600 {path}")
    return data


def _decoded(path: Path, data: bytes) -> PrivateKeyTypes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnusable(
            f"{path} holds no private key that can be read", "make one by `tidegauge keys new`"
        ) from error


def _raw(pem: bytes) -> bytes | None:
    """The 32 bytes of a key that is written in the plainest way; None for whatever else the file holds."""
    lines = pem.strip().splitlines()
    if len(lines) != 3 or lines[0] != b"-----BEGIN PRIVATE KEY-----" or lines[2] != b"-----END PRIVATE KEY-----":
        return None
    try:
        der = base64.b64decode(lines[1], validate=True)
    except binascii.Error:
        return None
    return der[len(_PKCS8) :] if der.startswith(_PKCS8) and len(der) == len(_PKCS8) + 32 else None


def create(path: Path) -> FileKey:
    """Make a key in a new file of mode 0600, durably. Raises KeyUnusable where the file exists or can't be written."""
    raw = os.urandom(32)
    body = base64.b64encode(_PKCS8 + raw)
    _write_secret(path, b"-----BEGIN PRIVATE KEY-----\n" + body + b"\n-----END PRIVATE KEY-----\n")
    return FileKey(raw)


def write_private(path: Path, key: Ed25519PrivateKey | X25519PrivateKey) -> None:
    """Write a key to a new file of mode 0600, durably. Raises KeyUnusable where the file exists or can't be written."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def _write_secret(path: Path, data: bytes) -> None:
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.unlink(missing_ok=True)
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)  # unlike a rename, it never takes the place of another key
        beside.unlink()
        sync_folder(path.parent)
    except FileExistsError as error:
        beside.unlink(missing_ok=True)
        raise KeyUnusable(f"{path} exists already", "give another path: a key is never replaced") from error
    except OSError as error:
        raise KeyUnusable(
            f"the key {path} can't be written ({error.strerror})", "check the folder and its disk"
        ) from error


def is_key(public: str) -> bool:
    """Whether this is the public half of a key, as it is written here."""
    if _WRITTEN.fullmatch(public) is None:
        return False
    raw = bytes.fromhex(public)
    return (raw[:31] + bytes([raw[31] & 0x7F])).hex() not in _NO_KEYS


def verify(public: str, use: Use, signature: bytes, data: bytes) -> bool:
    """Whether `signature` is that of `data` for this use by the key. A key that is none has signed nothing."""
    if not is_key(public):
        return False
    from nacl.exceptions import BadSignatureError
    from nacl.signing import VerifyKey

    try:
        VerifyKey(bytes.fromhex(public)).verify(use.value + data, signature)
    except (BadSignatureError, ValueError):  # the latter for another length than 64 bytes
        return False
    return True
