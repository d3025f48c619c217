"""Blobs encrypted to a public key, so that only who holds its private half can see what a camera saw.

The layout is in docs/formats.md. It is that of age (C2SP, age.md: X25519 recipients and the STREAM of 64 KiB pieces)
without its text header: an ephemeral X25519 key, HKDF-SHA256, ChaCha20-Poly1305 with a counter and a mark of the last
piece in the nonce, so that pieces can't be left out, put in another order or cut off.

A board only encrypts: libsodium does, which it signs with too. Who opens has `cryptography`, six times its size.
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from tidegauge.bundles.errors import BundleError
from tidegauge.signing import KeyUnusable, read_private, write_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

Recipient = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]

MAGIC = b"TGSEAL01"
#: Magic, the recipient's public key, the ephemeral public key.
HEADER = len(MAGIC) + 32 + 32
PIECE, TAG = 64 * 1024, 16
INFO = b"tidegauge sealed blob v1"
_RECIPIENT = re.compile("[0-9a-f]{64}")


class Sealed(BundleError):
    """A blob is encrypted, and its key is not here."""


def sealed_size(size: int) -> int:
    """Bytes of a sealed blob with `size` bytes in it."""
    return HEADER + size + TAG * max(1, -(-size // PIECE))


class Sealer:
    """Encrypts one stream: `put` gets what is to be written, `finish` ends it. Raises BundleError for a useless key."""

    def __init__(self, recipient: str, put: Callable[[bytes], None]) -> None:
        from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
        from nacl.exceptions import CryptoError

        self._put, self._held, self._count = put, bytearray(), 0
        own, peer = os.urandom(32), _raw(recipient)
        public = crypto_scalarmult_base(own)
        try:
            shared = crypto_scalarmult(own, peer)
        except CryptoError as error:  # the shared secret would be zero, whoever's key it is with
            raise _useless(peer) from error
        self._key = _derived(shared, public, peer)
        put(MAGIC + peer + public)

    def write(self, data: bytes) -> None:
        self._held += data
        while len(self._held) > PIECE:  # a whole piece is held back: it may be the last one
            self._piece(last=False)

    def finish(self) -> None:
        self._piece(last=True)

    def _piece(self, *, last: bool) -> None:
        from nacl.bindings import crypto_aead_chacha20poly1305_ietf_encrypt as encrypt

        data = bytes(self._held[:PIECE])
        del self._held[:PIECE]
        self._put(encrypt(data, None, _nonce(self._count, last=last), self._key))
        self._count += 1


def recipient_of(sealed: bytes) -> str:
    """The public key that a sealed blob is for. Raises BundleError where it is none."""
    if len(sealed) < HEADER + TAG or not sealed.startswith(MAGIC):
        raise BundleError("the blob is not sealed, though its manifest says so", "transfer it again")
    return sealed[len(MAGIC) : len(MAGIC) + 32].hex()


def unseal(sealed: bytes, key: X25519PrivateKey) -> bytes:
    """What is in a sealed blob. Raises BundleError where it is for another key, or not what was sealed."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    recipient, own = bytes.fromhex(recipient_of(sealed)), key.public_key().public_bytes_raw()
    if recipient != own:
        raise BundleError(
            f"the blob is encrypted to the key {recipient.hex()[:16]}…, not to {own.hex()[:16]}…",
            "give the private half of that key",
        )
    ephemeral = sealed[HEADER - 32 : HEADER]
    try:
        shared = key.exchange(X25519PublicKey.from_public_bytes(ephemeral))
    except ValueError as error:
        raise _useless(ephemeral) from error
    cipher = ChaCha20Poly1305(_derived(shared, ephemeral, recipient))
    out = bytearray()
    starts = range(HEADER, len(sealed), PIECE + TAG)
    try:
        for count, start in enumerate(starts):
            nonce = _nonce(count, last=count == len(starts) - 1)
            out += cipher.decrypt(nonce, sealed[start : start + PIECE + TAG], None)
    except InvalidTag as error:
        raise BundleError(
            "the sealed blob was changed or cut off after it was encrypted", "transfer it again"
        ) from error
    return bytes(out)


def create(path: Path) -> str:
    """Make a private key in a new file of mode 0600; returns its public half. Raises KeyUnusable."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = X25519PrivateKey.generate()
    write_private(path, key)
    return key.public_key().public_bytes_raw().hex()


def load(path: Path) -> X25519PrivateKey:
    """Read a private key. Raises KeyUnusable where it is none, or where others than its owner may read it."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    key = read_private(path)
    if not isinstance(key, X25519PrivateKey):
        raise KeyUnusable(
            f"the key {path} is not of the kind X25519: nothing is encrypted to it",
            "make one by `tidegauge keys new --for pictures`",
        )
    return key


def is_recipient(public: str) -> bool:
    """Whether something can be encrypted to this key: 64 hexadecimal digits, and no point of small order."""
    try:
        Sealer(public, lambda _: None)
    except BundleError:
        return False
    return True


def _raw(public: str) -> bytes:
    if _RECIPIENT.fullmatch(public) is None:
        raise BundleError(f"{public[:80]!r} is no public key", "give 64 hexadecimal digits, as `tidegauge keys` prints")
    return bytes.fromhex(public)


def _useless(peer: bytes) -> BundleError:
    return BundleError(f"nothing can be encrypted to the key {peer.hex()[:16]}…", "give another key")


def _derived(shared: bytes, ephemeral: bytes, recipient: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) of one block: what is asked for is no longer than a hash."""
    extracted = hmac.digest(ephemeral + recipient, shared, "sha256")
    return hmac.digest(extracted, INFO + b"\x01", "sha256")


def _nonce(count: int, *, last: bool) -> bytes:
    return count.to_bytes(11, "big") + bytes([last])
