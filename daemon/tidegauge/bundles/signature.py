"""The device's signature of a manifest: made before it is sealed, checked on the bytes that arrived.

What is signed is the manifest's JSON without its member `signature`: the other members in the order of the file, each
byte for byte, no white space between them. So a reader can check a manifest of a later version, whose members it does
not all know; and the file itself must have that form, or two readers could see two documents in it.
"""

from __future__ import annotations

import msgspec

from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest, Signature
from tidegauge.signing import KeyProvider, Use, verify

MEMBER = "signature"


class BadSignature(BundleError):
    """A manifest whose signature is not that of its content."""


def sign(manifest: Manifest, key: KeyProvider) -> Manifest:
    """The manifest with a signature by `key`, in the place of any that it had."""
    part = signed_part(msgspec.json.encode(manifest))
    return msgspec.structs.replace(manifest, signature=Signature(key.public, key.sign(Use.MANIFEST, part).hex()))


def signed_part(data: bytes) -> bytes:
    """The bytes of a manifest's file that a signature is over. Raises BadSignature for a file of another form."""
    try:
        members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadSignature(f"the manifest can't be read ({error})") from error
    if msgspec.json.encode(members) != data:
        raise BadSignature("the manifest is not in its canonical form: white space, or a member that comes twice")
    members.pop(MEMBER, None)
    return msgspec.json.encode(members)


def check(data: bytes, manifest: Manifest) -> str:
    """The key that signed the manifest whose file is `data`; "" where it has no signature.

    Raises BadSignature. Whether the key is the device's is for the caller to know.
    """
    signature = manifest.signature
    if signature is None:
        return ""
    if not verify(signature.key, Use.MANIFEST, bytes.fromhex(signature.value), signed_part(data)):
        raise BadSignature(f"the manifest of {manifest.bundle_id} is not what the key {signature.key[:16]}… has signed")
    return signature.key
