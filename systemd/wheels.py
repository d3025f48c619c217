"""Unpacks a folder of wheels into a site-packages folder, with nothing but Python's own library.

For `install`, on boards that have no pip. The folder holds wheels for several Pythons and machines and a SHA256SUMS; the one
that fits best is taken of each. A package named in --keep that this Python can already import stays the image's own.
Wheel file names and layout: the binary distribution format of the Python packaging specifications.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import sys
import zipfile
from pathlib import Path

NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
#: What a distribution is called when it is imported, where that differs.
MODULES = {
    "ai_edge_litert": "ai_edge_litert",
    "onnxruntime_tidl": "onnxruntime",
    "opencv_python": "cv2",
    "opencv_python_headless": "cv2",
}


class Refused(Exception):
    """Nothing was installed; the text says why and what to do."""


def glibc() -> tuple[int, int]:
    """This machine's glibc, (0, 0) where it has another C library."""
    said = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    found = re.fullmatch(r"glibc (\d+)\.(\d+).*", said or "")
    return (int(found[1]), int(found[2])) if found else (0, 0)


def platform_fits(tag: str, machine: str, libc: tuple[int, int]) -> bool:
    if tag in ("any", f"linux_{machine}"):
        return True
    named = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
    for name, least in named.items():
        if tag == f"{name}_{machine}":
            return libc >= least
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{re.escape(machine)}", tag)
    return bool(found) and libc >= (int(found[1]), int(found[2]))


def rank(file: str, version: tuple[int, int], machine: str, libc: tuple[int, int]) -> int | None:
    """How well a wheel fits: higher is better, None for not at all."""
    found = NAME.fullmatch(file)
    if found is None or not any(platform_fits(tag, machine, libc) for tag in found["platform"].split(".")):
        return None
    pythons, abis = found["python"].split("."), found["abi"].split(".")
    exact = f"cp{version[0]}{version[1]}"
    if exact in pythons and exact in abis:
        return 3
    if "abi3" in abis:
        least = [int(p[3:]) for p in pythons if re.fullmatch(r"cp3\d+", p)]
        return 2 if any(minor <= version[1] for minor in least) else None
    if "none" in abis and any(p in ("py3", exact, f"py{version[0]}{version[1]}") for p in pythons):
        return 1
    return None


def checked(folder: Path) -> dict[str, str]:
    """SHA-256 by wheel, as SHA256SUMS says it and as the files are."""
    try:
        lines = (folder / "SHA256SUMS").read_text().splitlines()
    except OSError as error:
        raise Refused(
            f"{folder}/SHA256SUMS: {error.strerror}. A folder made by `make board-bundle` has one."
        ) from error
    wanted = {name.lstrip("* "): digest for digest, _, name in (line.partition(" ") for line in lines if line.strip())}
    for wheel in sorted(folder.glob("*.whl")):
        if wheel.name not in wanted:
            raise Refused(f"{wheel} is not in SHA256SUMS: copy the folder again, or remove the file.")
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != wanted[wheel.name]:
            raise Refused(f"{wheel} is not what SHA256SUMS says: copy the folder again.")
    missing = [name for name in wanted if name.endswith(".whl") and not (folder / name).is_file()]
    if missing:
        raise Refused(f"{folder} lacks {missing[0]} of SHA256SUMS: copy the folder again.")
    return wanted


def chosen(names: list[str]) -> dict[str, str]:
    """The wheel for each distribution; Refused where a distribution has none for this machine."""
    version, machine, libc = sys.version_info[:2], platform.machine(), glibc()
    best: dict[str, tuple[int, str]] = {}
    seen = set()
    for name in names:
        found = NAME.fullmatch(name)
        if found is None:
            raise Refused(f"{name} is no name of a wheel.")
        distribution = found["name"].lower().replace("-", "_").replace(".", "_")
        seen.add(distribution)
        rated = rank(name, version, machine, libc)
        if rated is not None:
            best[distribution] = max(best.get(distribution, (0, "")), (rated, name))
    for distribution in sorted(seen - set(best)):
        raise Refused(
            f"no wheel of {distribution} fits Python {version[0]}.{version[1]} on {machine} with glibc {libc[0]}.{libc[1]}: "
            "make the folder again for this Python (`make board-bundle PYTHONS=…`)."
        )
    return {distribution: name for distribution, (_, name) in sorted(best.items())}


def unpack(wheel: Path, into: Path) -> None:
    """Files of the wheel; those of its .data folder that are code go beside them, the rest is not needed here."""
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = Path(entry.filename).parts
            if entry.is_dir() or not parts:
                continue
            if parts[0].endswith(".data"):
                if len(parts) < 3 or parts[1] not in ("purelib", "platlib"):
                    continue
                parts = parts[2:]
            if ".." in parts or Path(*parts).is_absolute():
                raise Refused(f"{wheel.name} holds {entry.filename!r}, outside of its folder.")
            target = into.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy)


def main() -> int:
    parser = argparse.ArgumentParser(description="unpack the wheels that fit this Python")
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--into", type=Path, help="site-packages folder; without it only the choice is printed")
    parser.add_argument("--keep", default="", help="modules that stay the image's own where it has them, with commas")
    given = parser.parse_args()
    try:
        digests = checked(given.wheels)
        choice = chosen(sorted(name for name in digests if name.endswith(".whl")))
        keep = [module for module in given.keep.split(",") if module]
        for distribution, name in choice.items():
            module = MODULES.get(distribution, distribution)
            if module in keep and importlib.util.find_spec(module) is not None:
                print(f"kept {module}: the image has its own")
                continue
            print(f"wheel {digests[name]} {name}")
            if given.into is not None:
                unpack(given.wheels / name, given.into)
    except OSError as error:
        where = error.filename or given.into or given.wheels  # a write that finds no room names no file
        print(f"install: {where}: {error.strerror}", file=sys.stderr)
        return 2
    except (Refused, zipfile.BadZipFile) as error:
        print(f"install: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
