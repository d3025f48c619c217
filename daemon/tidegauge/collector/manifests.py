"""Which received file is a manifest, and whether it may come in."""

from __future__ import annotations

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.manifest import Manifest
from tidegauge.bundles.reader import decode_manifest
from tidegauge.link.wire import Init


class BadManifest(BundleError):
    """A manifest that is not taken in; its problem is told to the device. `reason`: a word for a metric."""

    reason = "bad_manifest"


def is_manifest(init: Init) -> bool:
    """Whether the file of a transfer is a bundle's manifest rather than a blob."""
    kind = init.user_data.get("kind")
    return kind == "manifest" if kind else init.name == layout.MANIFEST


def is_records(init: Init) -> bool:
    """Whether it is a segment of a board's journal."""
    return init.user_data.get("kind") == "records"


def read_manifest(content: bytes, limit: int) -> Manifest:
    """Parse and validate a manifest of at most `limit` bytes. Raises BundleError."""
    if len(content) > limit:
        raise BadManifest(f"the manifest has {len(content)} bytes, the limit is {limit}")
    return decode_manifest(content, "this bundle")


def admit(content: bytes, limit: int, device: str) -> Manifest:
    """A manifest that arrived from `device`. Raises BadManifest where it is not readable or names another device."""
    try:
        manifest = read_manifest(content, limit)
    except BundleError as error:
        raise BadManifest(error.problem, error.cure) from error
    if manifest.device != device:
        raise BadManifest(f"the manifest is of device {manifest.device}, but came from {device}")
    return manifest
