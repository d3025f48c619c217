"""Zip files from people, unpacked: nothing in them is believed. Names stay inside, and sizes within a limit."""

from __future__ import annotations

import errno
import re
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.zip_directory import check_directory
from tidegauge.errors import TidegaugeError

MAX_MEMBERS = 20_000
_DEPTH = 8
_READ = 1 << 20
#: A folder or file: anything but what leads elsewhere, or that a person can't read in a list.
_PART = re.compile(r"[^/\\:\x00-\x1f\x7f]{1,200}")
#: What computers add by themselves.
_LITTER = frozenset({"__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"})


class BadZip(TidegaugeError):
    """A zip file that is none, is damaged, or holds what none of ours would."""


def unpack_zip(file: Path, folder: Path, limit: int) -> int:
    """Unpack `file` into `folder`, which must exist and be empty; returns the bytes written, at most `limit`.

    Raises BadZip; what was written until then stays for the caller to delete.
    """
    try:
        check_directory(file, MAX_MEMBERS)
        with zipfile.ZipFile(file) as archive:
            return _unpack(archive, folder, limit)
    except BundleError as error:
        raise BadZip(error.problem, error.cure) from error
    except (zipfile.BadZipFile, NotImplementedError, EOFError, UnicodeDecodeError, zlib.error, ValueError) as error:
        raise BadZip(f"the zip file is damaged, or packed in an unusual way ({error})", "pack it anew") from error
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise BadZip("the zip file holds a name twice, or as a file and as a folder", "pack it anew") from error
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENAMETOOLONG):  # such as a full disk: no fault of the file's
            raise
        raise BadZip(f"the zip file is damaged ({error.strerror})", "pack it anew") from error


def members_of(archive: zipfile.ZipFile, limit: int) -> list[tuple[zipfile.ZipInfo, PurePosixPath]]:
    """The files in it with their checked paths. Raises BadZip."""
    infos = archive.infolist()
    if len(infos) > MAX_MEMBERS:
        raise BadZip(f"the zip file has {len(infos)} members", f"at most {MAX_MEMBERS} are read")
    if sum(info.file_size for info in infos) > limit:
        raise BadZip(f"the zip file unpacks to more than {limit} bytes", "leave out what is not needed")
    out, seen = [], set()
    for info in infos:
        path = _path(info)
        if path is None:
            continue
        if str(path).casefold() in seen:
            raise BadZip(f"the zip file holds {str(path)[:200]} twice", "pack it anew")
        seen.add(str(path).casefold())
        out.append((info, path))
    return out


def _path(info: zipfile.ZipInfo) -> PurePosixPath | None:
    """Where a member belongs, None for folders and litter. Raises BadZip for what leads out, or is no plain file."""
    name = info.orig_filename if "\0" in info.orig_filename or "\\" in info.orig_filename else info.filename
    kind = stat.S_IFMT(info.external_attr >> 16)
    parts = name.rstrip("/").split("/")
    if any(part in _LITTER for part in parts):
        return None
    plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
    if not plain or len(parts) > _DEPTH or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or info.flag_bits & 0x1:
        raise BadZip(
            f"the zip file holds {name[:200]!r}, which is no plain file inside it", "pack files and folders only"
        )
    return None if name.endswith("/") or kind == stat.S_IFDIR else PurePosixPath(*parts)


def _unpack(archive: zipfile.ZipFile, folder: Path, limit: int) -> int:
    """`zipfile` gives no more of a member than its directory entry says, and the sum of these was checked."""
    written = 0
    for info, path in members_of(archive, limit):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, target.open("xb") as out:
            while data := source.read(_READ):
                written += out.write(data)
    return written
