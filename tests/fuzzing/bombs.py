"""Small inputs that would become large: what refusing each costs, in a process of its own."""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import msgspec
import zstandard

from fuzzing.targets import targets
from tidegauge.bundles.archive import import_bundle
from tidegauge.bundles.errors import BundleError
from tidegauge.bundles.layout import MAX_MANIFEST, MAX_QUOTES
from tidegauge.bundles.manifest import Blob
from tidegauge.bundles.reader import decode_blob, decode_manifest

MIB = 1 << 20
#: Of each bomb.
MOST_MIB, MOST_SECONDS = 50.0, 1.0


def _zstd(sized: bool) -> bytes:
    frame = zstandard.ZstdCompressor(level=3).compressobj(size=1024 * MIB if sized else -1)
    block = bytes(MIB)
    return b"".join(frame.compress(block) for _ in range(1024)) + frame.flush()


def _filled(part: Callable[[int], str], name: str, most: int = MAX_MANIFEST) -> bytes:
    """A right manifest with `most` parts in one member, or as many as fit."""
    manifest = json.loads(targets()["manifest"].seeds[0])
    whole, parts, size = json.dumps(manifest), [], 0
    count = 0
    while size < MAX_MANIFEST - len(whole) - 64 and count < most:
        parts.append(part(count))
        size += len(parts[-1]) + 1
        count += 1
    holder, member = name.split(".")
    manifest[holder][member] = "@"
    opening, closing = ("{", "}") if ":" in parts[0] else ("[", "]")
    return json.dumps(manifest).replace('"@"', opening + ",".join(parts[:-1]) + closing).encode()


def _many_members() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number in range(60_000):
            archive.writestr(zipfile.ZipInfo(f"blobs/sha256/{number:064x}"), b"")
    return out.getvalue()


def _deflated() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", bytes(256 * MIB))
    return out.getvalue()


def _overlapping() -> bytes:
    """One member of 1 MiB that the directory names four thousand times."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("manifest.json", b" " * MIB)
    data = out.getvalue()
    start = data.rindex(b"PK\x01\x02")
    end = data.rindex(b"PK\x05\x06")
    entry = data[start:end]
    entries = entry * 4000
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 4000, 4000, len(entries), start, 0)
    return data[:start] + entries + tail


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zstd frame of 1 GiB that says so": ("blob", lambda: _zstd(True)),
    "zstd frame of 1 GiB that doesn't": ("blob", lambda: _zstd(False)),
    "zip with a deflated manifest of 256 MiB": ("archive", _deflated),
    "zip with 60,000 members": ("archive", _many_members),
    "zip whose members are one and the same": ("archive", _overlapping),
    "manifest nested a million deep": ("manifest", lambda: b'{"schema":1,"x":' + b"[" * 1_000_000),
    "manifest of nothing but short names": (
        "manifest",
        lambda: _filled(lambda n: f'"{n:x}":""', "inventory.libraries"),
    ),
    "manifest of nothing but numbers": ("manifest", lambda: _filled(lambda n: f'"{n:x}":{n}', "cause.evidence")),
    "manifest of as many names as are read": (
        "largest manifest",
        lambda: _filled(lambda n: f'"{n:x}":""', "inventory.libraries", MAX_QUOTES // 4 - 100),
    ),
    "manifest of nothing but words": ("manifest", lambda: _filled(lambda n: f'"{n:x}"', "cause.symptoms")),
}


def set_off(kind: str, data: bytes) -> str:
    """Read it, and say how it was refused. Raises AssertionError where it was not."""
    try:
        if kind == "blob":
            decode_blob(data, Blob(hashlib.sha256(data).hexdigest(), len(data), 1000, "zstd"))
        elif kind.endswith("manifest"):
            decode_manifest(data, "it")
            if kind.startswith("largest"):
                return "read"
        else:
            with tempfile.TemporaryDirectory() as work:
                file = Path(work) / "a.tidebundle"
                file.write_bytes(data)
                import_bundle(file, Path(work) / "bundle")
    except BundleError as error:
        return error.problem
    raise AssertionError("it was read")


def _peak_mib() -> float:
    """The most memory that this process has held since `_forget_peak`, MiB. `ru_maxrss` would be that of whoever forked
    it."""
    line = next(row for row in Path("/proc/self/status").read_text().splitlines() if row.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def child(kind: str, file: str, limit: str) -> None:
    """In a process of its own: what reading `file` costs, as JSON. `limit`: MiB of address space beyond what it has."""
    data = Path(file).read_bytes()
    if int(limit):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(limit) * MIB
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    _forget_peak()
    before, began = _peak_mib(), time.perf_counter()
    said = set_off(kind, data)
    took = time.perf_counter() - began
    sys.stdout.buffer.write(msgspec.json.encode({"mib": _peak_mib() - before, "seconds": took, "said": said}))


def cost(name: str, limit: int = 0) -> dict[str, object]:
    """`mib`, `seconds`, and what was `said`. Raises RuntimeError where the process failed."""
    kind, make = BOMBS[name]
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "bomb"
        file.write_bytes(make())
        root = Path(__file__).parents[1]
        code = f"import sys; sys.path.insert(0, {str(root)!r}); from fuzzing.bombs import child; child(*sys.argv[1:])"
        command = [sys.executable, "-c", code, kind, str(file), str(limit)]
        done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.decode()[-2000:]}")
    found: dict[str, object] = msgspec.json.decode(done.stdout)
    return found
