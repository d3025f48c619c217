"""From what a capture collected to a sealed bundle in the spool. Runs in a thread: it hashes and compresses."""

from __future__ import annotations

import errno
import hashlib
import logging
from pathlib import Path

import msgspec
import numpy as np

from tidegauge import board
from tidegauge.agent.completeness import Completeness
from tidegauge.agent.endings import Ending
from tidegauge.agent.events import AlarmRaised, Evidence
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.fingerprint import digest_file, fingerprint
from tidegauge.bundles.manifest import Blob, Inventory, Manifest, Privacy, StoredFile, StoredTensor, Trace
from tidegauge.bundles.signature import sign
from tidegauge.bundles.writer import BundleWriter
from tidegauge.clocks import stamp
from tidegauge.pipeline.messages import PipelineReady, TraceDone
from tidegauge.profile import Profile
from tidegauge.signing import KeyProvider
from tidegauge.spool.faults import SpoolFault, fault_of
from tidegauge.spool.planner import DropReason
from tidegauge.spool.store import Spool
from tidegauge.tensors import TensorSpec
from tidegauge.tidl import tensor_table, trace_names
from tidegauge.tidl.artifacts import NET_SUFFIX

log = logging.getLogger(__name__)

#: Bytes of a bundle beside traces, tensors, model and artifacts: the manifest, logs, folders. Its files likewise.
BESIDE, FILES_BESIDE = 4 << 20, 64


class Identity(msgspec.Struct, frozen=True):
    """What the agent watches: hashes of the files as they are now, and versions."""

    device: str
    profile: Profile
    artifacts: dict[str, str]
    model: str
    versions: dict[str, str]
    reference_runtime: str

    @property
    def artifacts_sha256(self) -> str:
        """One hash for the folder: of the names and hashes of its files."""
        text = "".join(f"{name} {digest}\n" for name, digest in sorted(self.artifacts.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def network_sha256(self) -> str:
        """Of the network file, by which a collector knows the compile; of several the least, "" of none."""
        return min((digest for name, digest in self.artifacts.items() if name.endswith(NET_SUFFIX)), default="")


class Captured(msgspec.Struct, frozen=True):
    """Everything that one capture has collected."""

    ready: PipelineReady
    evidence: Evidence
    traces: tuple[Path, ...]
    sizes: tuple[int, ...]
    completeness: Completeness
    traced: TraceDone
    traced_outputs: tuple[bytes, ...]
    untraced_digest: str
    remote_log: bytes
    worker_log: bytes
    debug_level: int
    endings: tuple[Ending, ...] = ()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identify(device: str, profile: Profile, reference_runtime: str) -> Identity:
    """Read and hash what runs. `tempDir` beside the artifacts isn't part of what runs."""
    artifacts = {path.name: sha256_file(path) for path in sorted(Path(profile.artifacts).iterdir()) if path.is_file()}
    return Identity(device, profile, artifacts, sha256_file(Path(profile.model)), board.versions(), reference_runtime)


def build_bundle(
    spool: Spool,
    identity: Identity,
    alarm: AlarmRaised,
    captured: Captured,
    privacy: Privacy,
    key: KeyProvider | None = None,
) -> str:
    """Write the bundle into the spool and seal it, signed with the device's `key`. Returns its id.

    With the policy "statistics" no tensor leaves the board: traces go as fingerprints, tensors not at all. With a
    recipient all that shows the picture is encrypted before it is written.
    """
    full = privacy.policy != "statistics"
    size, files = _room(identity.profile, captured, full)
    for last in (False, True):
        try:
            writer = BundleWriter(spool.prepare(alarm.id, size, files), recipient=privacy.recipient)
            _write(writer, identity, alarm, captured, privacy, key)
            spool.commit(alarm.id)
            break
        except (OSError, BundleError) as error:
            again = isinstance(error, OSError) and error.errno == errno.EIO and not last
            spool.discard(alarm.id, None if again else _loss(error))
            if not again:
                raise
            # A file whose sync has failed is never synced again, since nobody knows what of it is on the disk.
            log.warning("bundle %s is written anew: %s", alarm.id, error)
    return alarm.id


def _loss(error: OSError | BundleError) -> DropReason:
    full = isinstance(error, OSError) and fault_of(error) is SpoolFault.FULL
    return DropReason.NO_ROOM if full else DropReason.DAMAGED


def bundle_bytes(profile: Profile, traces: int) -> int:
    """At most, of a bundle with so many bytes of traces: model, artifacts, tensors, logs and manifest too."""
    files = [Path(profile.model), *(path for path in Path(profile.artifacts).iterdir() if path.is_file())]
    return traces + sum(path.stat().st_size for path in files) + BESIDE


def predicted_bytes(profile: Profile, privacy: str, traces: int | None) -> int | None:
    """Of one bundle, where its traces take so many bytes (None where nobody knows). Raises OSError."""
    if privacy == "statistics":
        return bundle_bytes(profile, 0)
    return None if traces is None else bundle_bytes(profile, traces)


def _room(profile: Profile, captured: Captured, full: bool) -> tuple[int, int]:
    """Bytes and inodes that the bundle takes at most, in blocks: room is made before the first write."""
    tensors = [
        *captured.evidence.inputs,
        *captured.evidence.device,
        *captured.evidence.reference,
        *captured.traced_outputs,
    ]
    taken = sum(captured.sizes) + sum(len(tensor) for tensor in tensors) if full else 0
    texts = len(captured.remote_log) + len(captured.worker_log)
    files = len(captured.traces) + len(tensors) + FILES_BESIDE
    # What can't be compressed grows by a zstd frame's header and a few bytes a block of 128 KiB.
    return bundle_bytes(profile, taken + taken // 1000 + texts) + 4096 * files, files


def _write(
    writer: BundleWriter,
    identity: Identity,
    alarm: AlarmRaised,
    captured: Captured,
    privacy: Privacy,
    key: KeyProvider | None,
) -> None:
    ready, evidence, full = captured.ready, captured.evidence, privacy.policy != "statistics"
    elements = element_types(captured.remote_log)
    lacking = b"" if captured.completeness.whole else msgspec.json.encode(captured.completeness)

    def tensors(specs: tuple[TensorSpec, ...], data: tuple[bytes, ...]) -> tuple[StoredTensor, ...]:
        if not full:
            return ()
        return tuple(
            StoredTensor(spec, writer.add_bytes(raw, shows=True)) for spec, raw in zip(specs, data, strict=True)
        )

    logs = [
        StoredFile(name, writer.add_bytes(data))
        for name, data in (
            ("remote_log.txt", captured.remote_log),
            ("trace_worker.log", captured.worker_log),
            ("traces_incomplete.json", lacking),
            ("worker_ends.json", msgspec.json.encode(captured.endings) if captured.endings else b""),
        )
        if data
    ]
    manifest = Manifest(
        bundle_id=alarm.id,
        device=identity.device,
        virtual=ready.offload.virtual,
        created=stamp(),
        cause=msgspec.structs.replace(alarm.cause, evidence={**alarm.cause.evidence, **captured.completeness.counts()}),
        profile=_portable(identity.profile),
        inventory=Inventory(
            artifacts=identity.artifacts,
            model=identity.model,
            versions={**identity.versions, "runtime": ready.runtime, "reference": identity.reference_runtime},
            libraries=ready.libraries,
        ),
        options={"debug_level": str(captured.debug_level)},
        benchmark=captured.traced.benchmark,
        inputs=tensors(ready.inputs, evidence.inputs),
        device_outputs=tensors(ready.outputs, evidence.device),
        reference_outputs=tensors(ready.outputs, evidence.reference),
        traced_outputs=tensors(captured.traced.outputs, captured.traced_outputs),
        tracing_changed_output=captured.traced.digest != captured.untraced_digest,
        errors=evidence.measured.errors,
        loss=evidence.measured.loss,
        traces=tuple(_trace(writer, path, elements, full) for path in captured.traces),
        logs=tuple(logs),
        model=StoredFile(Path(identity.profile.model).name, writer.add_file(Path(identity.profile.model), "raw")),
        artifacts=_artifacts(writer, Path(identity.profile.artifacts)),
        privacy=privacy,
    )
    writer.seal(manifest if key is None else sign(manifest, key))


def _portable(profile: Profile) -> Profile:
    """The profile without the board's own paths."""
    return msgspec.structs.replace(profile, model=Path(profile.model).name, artifacts=Path(profile.artifacts).name)


def _artifacts(writer: BundleWriter, folder: Path) -> tuple[StoredFile, ...]:
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return tuple(StoredFile(path.name, writer.add_file(path, "raw")) for path in files)


def element_types(remote_log: bytes) -> dict[int, str]:
    """Element types by data id, as the C7x printed them while it dumped."""
    rows = tensor_table.from_remote_log(remote_log.decode(errors="replace"))
    return {row.data_id: row.dtype for row in rows if row.data_id is not None and row.dtype}


def _trace(writer: BundleWriter, path: Path, elements: dict[int, str], full: bool) -> Trace:
    name = trace_names.parse(path.name)
    if name is None:
        raise ValueError(f"{path.name} is not the name of a trace")
    dtype = "float32" if name.kind == "float" else elements.get(name.data_id)
    sha256, xxh3 = digest_file(path)
    size = path.stat().st_size
    whole = dtype is not None and size > 0 and size % np.dtype(dtype).itemsize == 0  # a cut one is told by its size
    blob: Blob | None = writer.add_file(path, shows=True) if full else None
    return Trace(
        file=path.name,
        subgraph=name.subgraph or "",
        data_id=name.data_id,
        kind="float" if name.kind == "float" else "y",
        dims=name.dims,
        dtype=dtype,
        size=size,
        sha256=sha256,
        xxh3_128=xxh3,
        fingerprint=fingerprint(np.memmap(path, np.dtype(dtype), "r")) if dtype is not None and whole else None,
        blob=blob,
    )
