"""What an integrator would otherwise look up: compiled models, cameras, a broker. Reads only; opens no device."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tidegauge.tidl.artifacts import ALLOWED_NODES, NET_SUFFIX

#: Where TI's images and most people put compiled models.
PLACES = ("/opt/model_zoo", "/opt/models", "/opt/edgeai-gst-apps/models", "/etc/tidegauge", ".")
#: A model zoo has artifacts three folders deep.
DEEPEST, MOST = 4, 200
BROKER = ("127.0.0.1", 1883)
CONNECT_SECONDS = 1.0
#: Not a camera that frames can be read from as they are: raw frames of a CSI receiver need the ISP.
_RAW = re.compile(r"csi|isp|vpac|wave5|j721e|dec\b|enc\b|codec|m2m", re.IGNORECASE)


class Camera(msgspec.Struct, frozen=True):
    """`kind` and `source` as in `[camera]`; `name`: what the driver calls it."""

    kind: str
    source: str
    name: str


def artifacts(places: Iterable[Path]) -> list[Path]:
    """Folders that hold a compiled network, sorted; at most `MOST`. What can't be read is left out."""
    found: set[Path] = set()
    for place in places:
        for folder in _folders(place, DEEPEST):
            if len(found) >= MOST:
                return sorted(found)
            if (folder / ALLOWED_NODES).is_file() and any(folder.glob(f"*{NET_SUFFIX}")):
                found.add(folder.resolve())
    return sorted(found)


def _folders(top: Path, deepest: int) -> Iterator[Path]:
    try:
        if not top.is_dir():
            return
        yield top
        inside = [each for each in sorted(top.iterdir()) if each.is_dir() and not each.is_symlink()]
    except OSError:
        return
    if deepest:
        for each in inside:
            if each.name != "tempDir" and not each.name.startswith("."):
                yield from _folders(each, deepest - 1)


def model_of(folder: Path) -> Path | None:
    """The model that a compile was made of, where exactly one lies in the artifacts folder, above it, or in `model`."""
    for place in (folder, folder.parent / "model", folder.parent):
        if place.is_dir():
            models = sorted(each for each in place.iterdir() if each.suffix in (".onnx", ".tflite") and each.is_file())
            if models:
                return models[0] if len(models) == 1 else None
    return None


def cameras(root: Path = Path("/")) -> list[Camera]:
    """Capture devices of Video4Linux by number, without codecs and raw receivers."""
    found = []
    for entry in sorted((root / "sys/class/video4linux").glob("video*"), key=_number):
        try:
            name = (entry / "name").read_text().strip()
            index = (entry / "index").read_text().strip()
        except OSError:
            continue
        if index == "0" and not _RAW.search(name):  # the further nodes of a USB camera carry metadata
            found.append(Camera("v4l2", f"/dev/{entry.name}", name))
    return found


def _number(entry: Path) -> int:
    digits = entry.name.removeprefix("video")
    return int(digits) if digits.isdecimal() else 0


def broker(address: tuple[str, int] = BROKER) -> tuple[str, int] | None:
    """The address where something takes a connection, else None."""
    try:
        with socket.create_connection(address, CONNECT_SECONDS):
            return address
    except OSError:
        return None


def device_name(hostname: str) -> str:
    """A name that the configuration takes, made from the host's: letters, digits, `-` and `_`, 64 at most."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", hostname.partition(".")[0]).strip("-")[:64] or "board"
