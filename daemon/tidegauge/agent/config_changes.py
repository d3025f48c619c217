"""Which keys of `agent.toml` a running agent takes at once, and which need a restart. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from tidegauge.camera.config import CameraConfig

S = TypeVar("S", bound=msgspec.Struct)

#: Whole tables, or single keys. What is not named here needs a restart, so a new key is safe until somebody has thought
#: about it. Acceptance, detectors and contexts wait: rules that change under half of a reference would make it neither
#: the old one nor the new one. A restart goes on with the samples that it has.
AT_ONCE = frozenset(
    {
        "camera",
        "camera_health",
        "shadow",
        "stand_back",
        "spool",
        "golden.interval",
        "capture.enabled",
        "capture.debug_level",
        "capture.room_mib",
        "capture.per_hour",
        "capture.per_day",
        "capture.per_cause_hour",
        "capture.timeout",
        "capture.quiet_hours",
        "capture.veto_file",
        "results.mqtt",
        "results.mqtt_interval",
        "link.host",
        "link.port",
        "link.username",
        "link.password_file",
        "link.tls",
        "link.ca",
        "link.cert",
        "link.key",
        "link.protocol",
        "link.keepalive",
        "link.connect_timeout",
        "link.publish_timeout",
        "link.backoff_first",
        "link.backoff_most",
        "link.status_interval",
        "link.connect_jitter",
        "link.bytes_per_second",
        "link.upload_window",
        "link.mib_per_day",
        "commands",
    }
)


def at_once(key: str) -> bool:
    """Whether a running agent takes this dotted key without a restart."""
    return key in AT_ONCE or key.partition(".")[0] in AT_ONCE


def _other_parts(old: CameraConfig, new: CameraConfig) -> bool:
    """Whether an application's frames begin or end to be watched, or at another socket: other workers do that."""
    return "tap" in (old.kind, new.kind) and (old.kind, old.source) != (new.kind, new.source)


def keys(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """Every dotted key of a configuration's type, tables opened."""
    for field in msgspec.structs.fields(kind):
        name = prefix + field.encode_name
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from keys(field.type, f"{name}.")
        else:
            yield name


def differences(before: msgspec.Struct, after: msgspec.Struct, prefix: str = "") -> tuple[str, ...]:
    """Dotted keys whose values differ between two configurations of one type, in the order of the type."""
    found: list[str] = []
    for field in msgspec.structs.fields(before):
        name, old, new = prefix + field.encode_name, getattr(before, field.name), getattr(after, field.name)
        if isinstance(old, msgspec.Struct) and type(old) is type(new):
            found += differences(old, new, f"{name}.")
        elif old != new:
            found.append(name)
    return tuple(found)


def taken(running: S, wanted: S, prefix: str = "") -> S:
    """`running` with the values of `wanted` for the keys that are taken at once."""
    changes: dict[str, Any] = {}
    for field in msgspec.structs.fields(running):
        name, old, new = prefix + field.encode_name, getattr(running, field.name), getattr(wanted, field.name)
        if isinstance(old, CameraConfig) and isinstance(new, CameraConfig) and _other_parts(old, new):
            continue
        if isinstance(old, msgspec.Struct) and type(old) is type(new):
            changes[field.name] = taken(old, new, f"{name}.")
        elif at_once(name):
            changes[field.name] = new
    return msgspec.structs.replace(running, **changes)
