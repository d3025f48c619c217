"""A bundle as one file, `.tidebundle`, for mail and for the command line.

A zip whose members are stored, not compressed (blobs are zstd frames already), `manifest.json` first, then
`blobs/sha256/<hex>` in the order of their names. The same bundle gives the same bytes.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tidegauge.bundles import layout
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.fingerprint import READ, Digest
from tidegauge.bundles.manifest import Blob, Manifest, blobs_of
from tidegauge.bundles.reader import decode_manifest, missing_blobs, read_manifest
from tidegauge.bundles.zip_directory import check_directory
from tidegauge.files import sync_folder

SUFFIX = ".tidebundle"
MAX_MEMBERS = 4096
#: Default limit of all members together, bytes.
MAX_TOTAL = 4 << 30

_NAME = re.compile(rf"{re.escape(layout.MANIFEST)}|{layout.BLOBS}/[0-9a-f]{{64}}", re.ASCII)
_EPOCH = (1980, 1, 1, 0, 0, 0)

Progress = Callable[[int], None]


def export_bundle(folder: Path, file: Path, progress: Progress | None = None) -> Manifest:
    """Write the bundle in `folder` to `file`, as a whole or not at all. `progress` is told bytes as they are written.

    Raises `BundleError` where a blob is missing or damaged, or `file` exists.
    """
    manifest = read_manifest(folder)
    lacking = missing_blobs(folder, manifest)
    if lacking:
        raise BundleError(
            f"{folder} lacks {len(lacking)} blobs of bundle {manifest.bundle_id}", "transfer it completely"
        )
    blobs = blobs_of(manifest)
    if len(blobs) >= MAX_MEMBERS:
        raise BundleError(f"{folder} has {len(blobs)} blobs, an archive holds {MAX_MEMBERS - 1}")
    if file.exists():
        raise BundleError(f"{file} exists already", "give another name or remove it")
    part = file.with_name(f".{file.name}.part")
    try:
        with part.open("wb") as raw:
            with zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
                with layout.manifest_path(folder).open("rb") as source:
                    _put(archive, layout.MANIFEST, source, layout.manifest_path(folder).stat().st_size, progress)
                for name in sorted(blobs):
                    with layout.blob_path(folder, name).open("rb") as source:
                        _check(
                            blobs[name], _put(archive, f"{layout.BLOBS}/{name}", source, blobs[name].stored, progress)
                        )
            raw.flush()
            os.fsync(raw.fileno())
        part.rename(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)
    return manifest


def import_bundle(file: Path, folder: Path, limit: int = MAX_TOTAL, progress: Progress | None = None) -> Manifest:
    """Read an archive from anywhere into `folder`, which must not exist and then holds a whole, checked bundle.

    `limit` bounds all members together, bytes. Raises `BundleError`; nothing is left behind then.
    """
    if folder.exists():
        raise BundleError(f"{folder} exists already", "give a folder that doesn't exist")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        try:
            check_directory(file, MAX_MEMBERS)
            with zipfile.ZipFile(file) as archive:
                manifest = _unpack(archive, file, work, limit, progress)
        except FileNotFoundError as error:
            raise BundleError(f"{file} does not exist", "give the path of a .tidebundle file") from error
        except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeDecodeError) as error:
            raise BundleError(f"{file} is not a {SUFFIX} file, or is damaged", str(error)) from error
        except OSError as error:
            raise BundleError(f"{file} can't be read into {folder}", str(error)) from error
        work.chmod(0o755)
        work.rename(folder)
        sync_folder(folder.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def _unpack(archive: zipfile.ZipFile, file: Path, work: Path, limit: int, progress: Progress | None) -> Manifest:
    members = _members(archive, file, limit)
    with archive.open(members[layout.MANIFEST]) as source:
        data = source.read(layout.MAX_MANIFEST + 1)
    manifest = decode_manifest(data, str(file))
    blobs = blobs_of(manifest)
    names = {f"{layout.BLOBS}/{name}" for name in blobs}
    if lacking := names - members.keys():
        raise BundleError(f"{file} lacks {len(lacking)} blobs of bundle {manifest.bundle_id}", "export it again")
    if extra := members.keys() - names - {layout.MANIFEST}:
        raise BundleError(f"{file} holds {len(extra)} members that its manifest doesn't name", "export it again")
    target = layout.blobs_folder(work)
    target.mkdir(parents=True)
    for name, blob in blobs.items():
        with archive.open(members[f"{layout.BLOBS}/{name}"]) as source, (target / name).open("xb") as out:
            _check(blob, _copy(source, out, blob.stored, progress))
            out.flush()
            os.fsync(out.fileno())
    with layout.manifest_path(work).open("xb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    for each in (target, target.parent, work):
        sync_folder(each)
    return manifest


def _members(archive: zipfile.ZipFile, file: Path, limit: int) -> dict[str, zipfile.ZipInfo]:
    """The members by name, once every one has passed the rules for input from elsewhere."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise BundleError(f"{file} has {len(infos)} members, at most {MAX_MEMBERS} are read")
    members: dict[str, zipfile.ZipInfo] = {}
    for info in infos:
        kind = info.external_attr >> 16
        if _NAME.fullmatch(info.filename) is None or (stat.S_IFMT(kind) not in (0, stat.S_IFREG)):
            raise BundleError(f"{file} holds {info.filename[:80]!r}, which doesn't belong into a bundle")
        if info.filename in members:
            raise BundleError(f"{file} holds {info.filename} twice")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 0x1 or info.compress_size != info.file_size:
            raise BundleError(
                f"{file}: member {info.filename} is compressed or encrypted", "export it with `bundle export`"
            )
        members[info.filename] = info
    if not infos or infos[0].filename != layout.MANIFEST:
        raise BundleError(f"{file} doesn't begin with {layout.MANIFEST}", f"it is not a {SUFFIX} file")
    total = sum(info.file_size for info in infos)
    if total > limit:
        raise BundleError(f"{file} holds {total} bytes, the limit is {limit}")
    if total > file.stat().st_size:
        raise BundleError(f"{file} claims more bytes than it has", "it is damaged or forged")
    return members


def _put(archive: zipfile.ZipFile, name: str, source: IO[bytes], size: int, progress: Progress | None) -> Digest:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    info.file_size = size
    with archive.open(info, "w") as out:
        return _copy(source, out, size, progress)


def _copy(source: IO[bytes], out: IO[bytes], size: int, progress: Progress | None) -> Digest:
    """Copy at most `size` bytes and one more where the source has it, so that a wrong size shows in the digest."""
    digest = Digest()
    while digest.size <= size and (data := source.read(min(READ, size + 1 - digest.size))):
        digest.update(data)
        out.write(data)
        if progress:
            progress(len(data))
    return digest


def _check(blob: Blob, digest: Digest) -> None:
    if digest.size != blob.stored or digest.sha256 != blob.sha256:
        raise BundleError(f"blob {blob.sha256} is damaged: its content has another hash", "transfer or export it again")
