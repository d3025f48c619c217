"""Files that people send: streamed to disk within limits, then checked and taken in beside the request.

What arrives is believed as little as what boards send. A bundle counts as its device's only where that device's known
key has signed it; any other is kept under the name "uploads".
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec

from tidegauge.bundles import layout, signature
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.manifest import Manifest, blobs_of
from tidegauge.clocks import Monotonic, monotonic, wall
from tidegauge.collector.blobs import BlobStore, hash_of
from tidegauge.collector.bundle_rows import BundleConflict
from tidegauge.collector.config import UploadsConfig
from tidegauge.collector.library_rows import LibraryEntry
from tidegauge.collector.log_kinds import UPLOAD_REFUSED
from tidegauge.collector.rate_limits import RateLimit
from tidegauge.collector.registered import MODEL_SUFFIXES, Registered
from tidegauge.collector.request_rows import Run, Upload, UploadKind, new_id
from tidegauge.collector.store import Store
from tidegauge.collector.unpacking import unpack_zip
from tidegauge.errors import TidegaugeError

_log = logging.getLogger(__name__)

#: Under what the bundles are kept that people have sent and no known device has signed.
UPLOADS = "uploads"
#: Of the file that is sent: what it may be called, without a folder.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()-]{0,199}", re.ASCII)
#: Seconds until the average speed counts.
_GRACE = 30.0
#: Written to disk at once, bytes.
_PIECE = 1 << 20
#: Bytes that stay free on the disk whatever is uploaded.
_RESERVE = 256 << 20
_STOPPED = "the collector was stopped while it took this in: upload it again"


class UploadRefused(TidegaugeError):
    """`status`: of HTTP."""

    def __init__(self, status: int, problem: str, cure: str = "", wait: float = 0.0) -> None:
        super().__init__(problem, cure)
        self.status, self.wait = status, wait


class Asked(msgspec.Struct, frozen=True):
    """What is sent, by whom. `model`: SHA-256 of the registered model that traces belong to, "" for the one inside."""

    kind: UploadKind
    name: str
    who: str
    model: str = ""


@dataclass
class Uploads:
    """Takes files in. `executor`: this process; `folder`: where files are until they are taken in.

    `completed` hears of a bundle that can be compared, `run` of a run that was asked for.
    """

    store: Store
    blobs: BlobStore
    registered: Registered
    config: UploadsConfig
    executor: str
    folder: Path
    completed: Callable[[str, str], None]
    run: Callable[[str], None]
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _open: int = 0

    def __post_init__(self) -> None:
        self._rate = RateLimit(self.config.per_hour, self.config.per_hour / 60.0)

    def recover(self) -> None:
        """At the start: what this process was taking in when it ended has failed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.store.end_uploads(self.executor, wall(), _STOPPED)

    async def receive(self, asked: Asked, announced: int | None, pieces: AsyncIterator[bytes]) -> Upload:
        """Stream a file to disk; it is taken in afterwards, in a task of its own. Raises UploadRefused, OSError."""
        self._check(asked, announced)
        self._open += 1
        try:
            return await self._receive(asked, announced, pieces)
        finally:
            self._open -= 1

    async def _receive(self, asked: Asked, announced: int | None, pieces: AsyncIterator[bytes]) -> Upload:
        place = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="upload-", dir=self.folder))
        now = wall()
        upload = Upload(new_id(), asked.kind, asked.name, 0, asked.who, self.executor, now, now)
        await asyncio.to_thread(self.store.add_upload, upload)
        try:
            size, sha256 = await self._write(place / asked.name, announced, pieces)
        except BaseException as error:
            problem = str(error) if isinstance(error, UploadRefused) else "it did not arrive"
            self.store.set_upload(upload.upload, wall(), state="failed", problem=problem)
            shutil.rmtree(place, ignore_errors=True)
            raise
        await asyncio.to_thread(self.store.set_upload, upload.upload, wall(), state="checking", size=size)
        task = asyncio.create_task(asyncio.to_thread(self._take_in, upload.upload, asked, place, sha256))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return msgspec.structs.replace(upload, state="checking", size=size)

    def _check(self, asked: Asked, announced: int | None) -> None:
        """What can be refused before a byte of it is read."""
        suffixes = {"bundle": (".tidebundle",), "model": MODEL_SUFFIXES}.get(asked.kind, (".zip",))
        if _NAME.fullmatch(asked.name) is None or not asked.name.lower().endswith(suffixes):
            raise UploadRefused(
                400,
                f"{asked.name[:200]!r} is no name for this kind of file",
                f"it must end with {' or '.join(suffixes)}",
            )
        if announced is not None and announced > self.config.max_bytes:
            raise self._too_large()
        if self._open >= self.config.at_once:
            raise UploadRefused(429, "other files are being uploaded", "try again in a moment", wait=10.0)
        if wait := self._rate.take(asked.who, monotonic()):
            raise UploadRefused(429, f"more than {self.config.per_hour} uploads an hour", "wait", wait=wait)

    async def _write(self, path: Path, announced: int | None, pieces: AsyncIterator[bytes]) -> tuple[int, str]:
        """Bytes and SHA-256 of what came. Raises UploadRefused."""
        room = await asyncio.to_thread(lambda: shutil.disk_usage(path.parent).free - _RESERVE)
        began, size, digest, held = monotonic(), 0, hashlib.sha256(), bytearray()
        with path.open("xb") as file:
            async for piece in _patient(pieces, self.config.idle_seconds):
                size += len(piece)
                if size > self.config.max_bytes:
                    raise self._too_large()
                if max(size, announced or 0) > room:
                    raise UploadRefused(507, "the collector's disk has no room for this file", "make room, try again")
                self._check_speed(size, began)
                held += piece
                if len(held) >= _PIECE:
                    await asyncio.to_thread(_put, file, held, digest)
            await asyncio.to_thread(_put, file, held, digest)
        if not size:
            raise UploadRefused(400, "the file is empty", "send it as the body of the request")
        return size, digest.hexdigest()

    def _check_speed(self, size: int, began: Monotonic) -> None:
        passed = monotonic() - began
        if passed > _GRACE and size < passed * self.config.least_bytes_per_second:
            raise UploadRefused(408, "the file comes too slowly", "try again from a better connection")

    def _too_large(self) -> UploadRefused:
        return UploadRefused(
            413, f"the file has more than {self.config.max_bytes} bytes", "an operator can raise `uploads.max_bytes`"
        )

    # --- taking in: in a thread -------------------------------------------------------------------------------------

    def _take_in(self, upload: str, asked: Asked, place: Path, sha256: str) -> None:
        try:
            result = self._entered(asked, place, sha256)
        except (TidegaugeError, OSError) as error:
            said = UPLOAD_REFUSED.of(upload=upload, what=asked.kind)
            _log.warning("an uploaded %s is refused: %s", asked.kind, error, extra=said)
            problem = str(error).replace(f"{place}/", "")
            self.store.set_upload(upload, wall(), state="failed", problem=problem[:1000])
        else:
            self.store.set_upload(upload, wall(), state="done", result=result)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _entered(self, asked: Asked, place: Path, sha256: str) -> dict[str, str]:
        """What became of the file. Raises TidegaugeError, OSError."""
        file = place / asked.name
        match asked.kind:
            case "bundle":
                return self._take_bundle(file, place / "bundle")
            case "traces":
                return self._take_traces(file, asked, sha256)
            case "model":
                return _entries([self.registered.add_model(file)])
            case "compile":
                inside = place / asked.name.removesuffix(".zip")
                inside.mkdir()
                unpack_zip(file, inside, self.config.unpacked_bytes)
                return _entries(self.registered.add_compile(inside))

    def _take_bundle(self, file: Path, folder: Path) -> dict[str, str]:
        manifest = import_bundle(file, folder, self.config.max_bytes)
        head = layout.manifest_path(folder)
        content = head.read_bytes()
        row = self._owned(manifest, content)
        name = hash_of(head)
        for sha256, path in [(each, layout.blob_path(folder, each)) for each in blobs_of(manifest)] + [(name, head)]:
            self.store.reprieve(sha256)
            for device, bundle in self.store.add_blob(sha256, self.blobs.put(sha256, path), wall()):
                self.completed(device, bundle)
        if self.store.add_bundle(row, name, wall()):
            self.completed(row.device, row.bundle_id)
        return {"device": row.device, "bundle": row.bundle_id}

    def _owned(self, manifest: Manifest, content: bytes) -> Manifest:
        """Whose bundle it counts as. Raises BadSignature; BundleConflict where its id is another bundle's."""
        key = signature.check(content, manifest)
        known = self.store.device_key(manifest.device)
        sha256 = hashlib.sha256(content).hexdigest()
        if key and known is not None and known.key == key:
            there = self.store.bundle(manifest.device, manifest.bundle_id)
            if there is not None and there.manifest_sha256 != sha256:
                raise BundleConflict(f"{manifest.device} has sent another bundle {manifest.bundle_id}")
            return manifest
        return msgspec.structs.replace(manifest, device=UPLOADS, bundle_id=f"{manifest.bundle_id[:47]}-{sha256[:16]}")

    def _take_traces(self, file: Path, asked: Asked, sha256: str) -> dict[str, str]:
        self.store.reprieve(sha256)
        self.store.keep_blob(sha256, self.blobs.put(sha256, file), wall())
        run = Run(new_id(), "traces", asked.name, "", "", asked.who, wall(), {}, sha256, asked.model)
        self.store.add_run(run)
        self.run(run.run)
        return {"run": run.run}


async def _patient(pieces: AsyncIterator[bytes], idle: float) -> AsyncIterator[bytes]:
    """Each piece as it comes. Raises UploadRefused where none has come for `idle` seconds."""
    while True:
        try:
            async with asyncio.timeout(idle):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise UploadRefused(408, f"nothing of the file has come for {idle:g} s", "try again") from error
        yield piece


def _put(file: IO[bytes], held: bytearray, digest: hashlib._Hash) -> None:
    file.write(held)
    digest.update(held)
    held.clear()


def _entries(entries: list[LibraryEntry]) -> dict[str, str]:
    return {entry.kind: ",".join(each.key for each in entries if each.kind == entry.kind) for entry in entries}
