"""Whose manifests are taken in: the signature must be that of the content, and the key the device's.

The first key that a device signs with is taken for its own, or only keys that a person has registered. From then on a
manifest by another key, or by none, is refused, whatever the broker let through. And the key that signs what the
collector itself answers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from tidegauge import signing
from tidegauge.bundles import signature
from tidegauge.bundles.manifest import Manifest
from tidegauge.clocks import wall
from tidegauge.collector.config import TrustPolicy
from tidegauge.collector.key_rows import DeviceKey
from tidegauge.collector.log_kinds import ANSWER_KEY_MADE, KEY_TAKEN
from tidegauge.collector.manifests import BadManifest
from tidegauge.collector.store import Store
from tidegauge.signing import KeyProvider

_log = logging.getLogger(__name__)

#: The collector's own key, in its data folder.
ANSWER_KEY = "answers.key"


class BadSignature(BadManifest):
    """The signature is not that of the content."""

    reason = "bad_signature"


class Unsigned(BadManifest):
    """A signature is due, and there is none."""

    reason = "unsigned"


class OtherKey(BadManifest):
    """Signed, but by a key that is not known as the device's."""

    reason = "other_key"


def answer_key(data: Path, given: str) -> KeyProvider:
    """The key that signs answers to boards: in the file `given`, else `answers.key` in `data`, made at the first start.

    Raises KeyUnusable: an answer without the signature would be no answer to a board that pins the key.
    """
    path = data / ANSWER_KEY
    if given or path.exists():
        return signing.load(Path(given) if given else path)
    try:
        key = signing.create(path)
    except signing.KeyUnusable:
        if not path.exists():
            raise
        return signing.load(path)  # another process was quicker
    form = "answers are signed by the new key %s: boards may pin it (`link.collector_keys`)"
    _log.info(form, key.public, extra=ANSWER_KEY_MADE.of(key=key.public))
    return key


@dataclass(frozen=True)
class Trust:
    """`policy`: what is believed of a device that no key is known of."""

    store: Store
    policy: TrustPolicy

    def check(self, content: bytes, manifest: Manifest) -> None:
        """Raises BadManifest. The first key of a device may become its own by this."""
        try:
            key = signature.check(content, manifest)
        except signature.BadSignature as error:
            raise BadSignature(error.problem, error.cure) from error
        device = manifest.device
        if not judge(device, self.store.device_key(device), key, self.policy):
            return
        if self.store.pin_key(device, key, wall()) != key:
            raise OtherKey(f"{device} has signed with another key a moment ago")
        _log.info("the key of %s is %s from now on", device, key, extra=KEY_TAKEN.of(device=device, key=key))


def judge(device: str, known: DeviceKey | None, key: str, policy: TrustPolicy) -> bool:
    """Whether `key` ("" for no signature) is to become the device's own. Raises BadManifest where it isn't believed."""
    if known is not None:
        if not key:
            raise Unsigned(f"the manifest has no signature, and the key of {device} is known")
        if key != known.key:
            raise OtherKey(
                f"the manifest is signed by the key {key[:16]}…, not by that of {device}, {known.key[:16]}…",
                "where the board was set up anew: `tidegauge collector keys forget` or `register`",
            )
        return False
    if policy == "registered":
        kind = OtherKey if key else Unsigned
        raise kind(f"no key of {device} is registered", f"`tidegauge collector keys register {device} KEY`")
    return bool(key)
