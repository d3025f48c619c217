"""What the pages say: words and numbers for people, from rows and manifests. Pure."""

from __future__ import annotations

import datetime
import math
import re

import msgspec

from tidegauge.collector.request_rows import Run, SentCommand, Upload
from tidegauge.collector.tables import Bundle, Device


class Badge(msgspec.Struct, frozen=True):
    """A short word and its tone: "good", "bad", "warn", "busy" or "quiet"."""

    text: str
    tone: str


#: How a comparison ended, by its exit code.
_ENDED = {0: Badge("no culprit", "good"), 1: Badge("culprit", "bad"), 3: Badge("coverage too low", "warn")}


def utc(seconds: float) -> str:
    """`2026-12-01 21:46:03 UTC`; a board's clock may be anything, so an impossible time is said to be one."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "an impossible time"


def iso(seconds: float) -> str:
    """For the attribute `datetime`; empty where there is no such time."""
    try:
        return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def ago(seconds: float, now: float) -> str:
    """`12 s ago`, of two moments on the same clock."""
    age = max(0.0, now - seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= length:
            return f"{age // length:.0f} {unit} ago"
    return f"{age:.0f} s ago"


def size(count: float) -> str:
    """`1.4 MiB`."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: float | None) -> str:
    """Three significant digits, a count in full (72,239); an absent number is a dash, not a zero."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e12 else f"{value:.3g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3g} %"


def words(name: str) -> str:
    """`black_output` → `black output`."""
    return name.replace("_", " ")


def bundle_badge(bundle: Bundle) -> Badge:
    """Where a bundle stands, or how its comparison ended."""
    match bundle.state:
        case "received" | "waiting_blobs":
            return Badge(f"receiving {bundle.blobs_held}/{bundle.blobs}", "quiet")
        case "complete":
            return Badge("queued", "quiet")
        case "comparing":
            return Badge("comparing", "busy")
        case "failed":
            return Badge("failed", "warn")
        case "incomplete":
            return Badge(f"incomplete {bundle.blobs_held}/{bundle.blobs}", "warn")
        case "expired":
            return Badge("expired", "quiet")
        case "compared":
            return _ENDED.get(bundle.exit_code if bundle.exit_code is not None else -1, Badge("compared", "quiet"))


def device_badge(device: Device) -> Badge:
    """How a device is: an alarm comes before everything else."""
    if device.alarm or device.alarms:
        return Badge("alarm", "bad")
    return {
        "online": Badge("online", "good"),
        "lost": Badge("lost", "warn"),
        "stopped": Badge("stopped", "quiet"),
    }.get(device.state, Badge("unknown", "quiet"))


def run_badge(run: Run) -> Badge:
    """Where a comparison that somebody asked for stands, or how it ended."""
    match run.state:
        case "queued":
            return Badge("queued", "quiet")
        case "running":
            return Badge("comparing", "busy")
        case "failed":
            return Badge("failed", "warn")
        case "done":
            return _ENDED.get(run.exit_code if run.exit_code is not None else -1, Badge("compared", "quiet"))


def upload_badge(upload: Upload) -> Badge:
    return {
        "receiving": Badge("receiving", "busy"),
        "checking": Badge("checking", "busy"),
        "done": Badge("taken in", "good"),
        "failed": Badge("not taken in", "warn"),
    }[upload.state]


def command_badge(command: SentCommand) -> Badge:
    tones = {"done": "good", "refused": "warn", "failed": "bad", "running": "busy", "sent": "busy"}
    return Badge(command.state, tones.get(command.state, "quiet"))


def command_name(command: SentCommand) -> str:
    """`CaptureNow` → `capture now`."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", str(command.action.get("type", "unknown"))).lower()


def short(sha256: str) -> str:
    """A hash for people; the page has the whole one too."""
    return sha256[:12] or "–"


def verdict_line(bundle: Bundle) -> str:
    """The comparison's sentence, or in its place why there is none."""
    if bundle.sentence:
        return bundle.sentence
    if bundle.state in ("failed", "incomplete", "expired"):
        return bundle.reason[:1].upper() + bundle.reason[1:]
    if bundle.state == "comparing":
        return "The layers are being compared."
    if bundle.state == "complete":
        return "Everything is here; the comparison has not begun."
    return f"{bundle.blobs_held} of {bundle.blobs} blobs are here."
