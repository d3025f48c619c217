"""Where things are in a bundle's folder, and how large they may be."""

from __future__ import annotations

from pathlib import Path

MANIFEST = "manifest.json"
BLOBS = "blobs/sha256"

#: A manifest is kilobytes; a thousand traces with per-code counts are about 3 MB.
MAX_MANIFEST = 16 << 20
#: Quotation marks and commas in a manifest. Four thousand traces with per-code counts have 300,000 and 1.2 million.
MAX_QUOTES, MAX_ITEMS = 400_000, 1_500_000
#: Dimensions of a tensor, and the most that one of them, or its bytes, may be.
MAX_RANK, MAX_ELEMENTS = 8, 1 << 40
#: zstd window that a reader grants, bytes.
MAX_WINDOW = 8 << 20


def manifest_path(folder: Path) -> Path:
    return folder / MANIFEST


def blobs_folder(folder: Path) -> Path:
    return folder / BLOBS


def blob_path(folder: Path, sha256: str) -> Path:
    """Path of a blob. `sha256` must be 64 hexadecimal digits; raises ValueError, since it may come from elsewhere."""
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ValueError(f"{sha256[:80]!r} is not a SHA-256")
    return folder / BLOBS / sha256
