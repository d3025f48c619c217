"""The manifest of a bundle: everything about one anomaly, in one schema-versioned document (DESIGN §7).

Tensors, traces, logs, model and artifacts are blobs beside it, addressed by content. A blob's name is the SHA-256 of
the bytes as stored and sent (after compression), so that it can be checked without being opened.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.bundles.redaction import Hiding
from tidegauge.clocks import Stamp
from tidegauge.pipeline.messages import TensorErrors
from tidegauge.profile import Profile
from tidegauge.signing import PublicKey
from tidegauge.tensors import TensorSpec

SCHEMA = 1

Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Meta(ge=0, le=1 << 40)]


class Blob(msgspec.Struct, frozen=True):
    """A blob as stored: `sha256` and `stored` bytes of the stored form, `size` bytes after decoding.

    `encoding` "zstd": one zstd frame; "raw": as is (models and artifacts, so that equal files of a fleet are equal
    blobs whatever the compressor's version); "sealed": a zstd frame encrypted to the manifest's `privacy.recipient`.
    """

    sha256: Sha256
    stored: Size
    size: Size
    encoding: Literal["zstd", "raw", "sealed"]


class Fingerprint(msgspec.Struct, frozen=True):
    """What is told of a trace that stays on the board. Values are codes for integer types, numbers for float32.

    `counts`: occurrences of each code from the lowest to the highest, for 8-bit types, else None. Minimum to rms are
    over finite elements, None where there is none. `low_share`/`high_share`: shares at either end of the code range.
    """

    count: int
    non_finite: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    rms: float | None
    zero_share: float
    low_share: float
    high_share: float
    counts: tuple[int, ...] | None


class Trace(msgspec.Struct, frozen=True):
    """One trace file. `dims`: (batch, dim1, dim2, channels, height, width). `dtype` None where nobody knows it yet."""

    file: str
    subgraph: str
    data_id: int
    kind: Literal["y", "float"]
    dims: tuple[int, ...]
    dtype: str | None
    size: Size
    sha256: Sha256
    xxh3_128: str
    fingerprint: Fingerprint | None
    blob: Blob | None


class StoredTensor(msgspec.Struct, frozen=True):
    """A tensor recorded with the bundle, raw in C order."""

    spec: TensorSpec
    blob: Blob


class StoredFile(msgspec.Struct, frozen=True):
    """A file recorded with the bundle. `name` has no folder in it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._+-]{0,199}$")]
    blob: Blob


class Cause(msgspec.Struct, frozen=True):
    """Why the capture was taken. `detector` that raised the alarm; `verdict` of DESIGN §6.4; `evidence` by name.

    `severity` of the verdict. `replay`: what the same frame showed when it was run again on the board
    (`attribution.REPLAYS`), empty where it was not. `evidence` has the terms of a decomposition, `attribution.TERMS`.
    """

    detector: str
    verdict: Literal["accelerator", "reference", "data", "camera", "undecided"]
    symptoms: tuple[str, ...]
    evidence: dict[str, float]
    message: str
    severity: Literal["critical", "warning"] = "critical"
    replay: str = ""


class Inventory(msgspec.Struct, frozen=True):
    """What ran. Hashes are SHA-256 hex of files; `versions` by component, as read on the board."""

    artifacts: dict[str, str]
    model: str
    versions: dict[str, str]
    libraries: dict[str, str]


class Signature(msgspec.Struct, frozen=True):
    """Ed25519 by the device's own `key` (public, 64 hexadecimal digits), over `signature.signed_part` of the file."""

    key: PublicKey
    value: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]


class Privacy(msgspec.Struct, frozen=True):
    """What the board kept to itself: `policy` is its `capture.privacy`; `hiding`, what was done to the picture before
    both sides ran on it; `recipient`, the public key that all which shows it is encrypted to, empty for none.
    """

    policy: Literal["full", "statistics", "golden"] = "full"
    hiding: Hiding = Hiding()
    recipient: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""


class Manifest(msgspec.Struct, frozen=True):
    """One anomaly. `tracing_changed_output`: whether the traced run's outputs differ from those without tracing.

    `privacy` None: of a release that did not say. `signature` None: of a device without a key.
    """

    bundle_id: Annotated[str, Meta(pattern=r"^[0-9A-Za-z-]{8,64}$")]
    device: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    virtual: bool
    created: Stamp
    cause: Cause
    profile: Profile
    inventory: Inventory
    options: dict[str, str]
    benchmark: dict[str, int]
    inputs: tuple[StoredTensor, ...]
    device_outputs: tuple[StoredTensor, ...]
    reference_outputs: tuple[StoredTensor, ...]
    traced_outputs: tuple[StoredTensor, ...]
    tracing_changed_output: bool
    errors: tuple[TensorErrors, ...]
    loss: float | None
    traces: tuple[Trace, ...]
    logs: tuple[StoredFile, ...]
    model: StoredFile | None
    artifacts: tuple[StoredFile, ...]
    schema: Annotated[int, Meta(ge=1)] = SCHEMA
    privacy: Privacy | None = None
    signature: Signature | None = None


def blobs_of(manifest: Manifest) -> dict[str, Blob]:
    """Every blob that the manifest names, by its hash."""
    stored: list[StoredTensor | StoredFile] = [
        *manifest.inputs,
        *manifest.device_outputs,
        *manifest.reference_outputs,
        *manifest.traced_outputs,
        *manifest.logs,
        *manifest.artifacts,
    ]
    if manifest.model is not None:
        stored.append(manifest.model)
    blobs = [item.blob for item in stored] + [trace.blob for trace in manifest.traces if trace.blob is not None]
    return {blob.sha256: blob for blob in blobs}
