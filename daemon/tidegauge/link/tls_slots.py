"""Renewing the link's certificate while the old one still works: two slots, and the old one stays until the new one has
connected.

In the folder `link.renewal`, or `certificates` in the board's state folder:

* `next.key`, `next.csr`: made by the board itself at 2/3 of the certificate's life; the key never leaves it.
* `next.pem`: the signed certificate, with its chain; put there by whoever signs. It is tried first.
* `current.pem`: key and certificate of the pair that has connected last, in one file, so that a power cut leaves one
  or the other. It goes before `link.cert` as long as it ends later.
"""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidegauge.clocks import wall
from tidegauge.errors import TidegaugeError
from tidegauge.files import sync_folder, write_durably
from tidegauge.link import certificate_process
from tidegauge.link.config import LinkConfig
from tidegauge.log_kinds import CERTIFICATE_REFUSED, CERTIFICATE_TAKEN

log = logging.getLogger(__name__)

CURRENT, NEXT_KEY, NEXT_REQUEST, NEXT = "current.pem", "next.key", "next.csr", "next.pem"
#: Share of a certificate's life after which a new one is asked for.
RENEW_AT = 2 / 3


@dataclass(frozen=True, slots=True)
class Slot:
    """A pair to connect with. `new`: it has not connected yet."""

    config: LinkConfig
    new: bool = False


def slots(config: LinkConfig) -> tuple[Slot, ...]:
    """The pairs to connect with, in order; the last one is that which has worked. One that can't be used is named in
    the log and left out."""
    present = Slot(in_use(config))
    folder = _folder(config)
    if folder is None or not (folder / NEXT).exists():
        return (present,)
    candidate = msgspec.structs.replace(config, cert=str(folder / NEXT), key=str(folder / NEXT_KEY))
    try:
        check_new(candidate, Path(present.config.cert))
    except TidegaugeError as error:
        log.error("the renewed certificate is not used: %s", error, extra=CERTIFICATE_REFUSED.of())
        return (present,)
    return (Slot(candidate, new=True), present)


def came(config: LinkConfig) -> int | None:
    """Which signed certificate lies there, can be used and has not connected yet: its file's time of change (ns)."""
    new = next((slot for slot in slots(config) if slot.new), None)
    return None if new is None else Path(new.config.cert).stat().st_mtime_ns


def in_use(config: LinkConfig) -> LinkConfig:
    """With the pair that has connected last, where it ends later than the configured one."""
    folder = _folder(config)
    if folder is None or not (folder / CURRENT).exists():
        return config
    path = folder / CURRENT
    try:
        if certificate_process.read(path).ends < certificate_process.read(Path(config.cert)).ends:
            return config
    except TidegaugeError as error:
        log.error("the renewed certificate is not used: %s", error, extra=CERTIFICATE_REFUSED.of())
        return config
    return msgspec.structs.replace(config, cert=str(path), key="")


def check_new(candidate: LinkConfig, present: Path) -> None:
    """Raises TidegaugeError for a certificate that isn't for this board's new key and name, or not for this moment."""
    path = Path(candidate.cert)
    new, old = certificate_process.read(path), certificate_process.read(present)
    if not new.begins <= wall() < new.ends:
        raise TidegaugeError(f"{path} is not valid now, by this clock", "sign the request again, or set the clock")
    if new.name != old.name:
        raise TidegaugeError(f"{path} is for {new.name!r}, not for {old.name!r}", "sign the right request")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(candidate.cert, candidate.key)
    except (ssl.SSLError, OSError) as error:
        raise TidegaugeError(
            f"{path} is not for the key {candidate.key} ({error})", "sign the request beside it"
        ) from error


def connected(slot: Slot, config: LinkConfig) -> None:
    """The broker has taken this pair: from now on it is the one in use. Raises OSError where that can't be written."""
    folder = _folder(config)
    if not slot.new or folder is None:
        return
    pair = Path(slot.config.key).read_bytes().rstrip() + b"\n" + Path(slot.config.cert).read_bytes()
    _write_secret(folder / CURRENT, pair)
    for name in (NEXT, NEXT_KEY, NEXT_REQUEST):
        (folder / name).unlink(missing_ok=True)
    sync_folder(folder)
    log.info("the renewed certificate has connected, and is the one in use", extra=CERTIFICATE_TAKEN.of())


def request_if_due(config: LinkConfig) -> str:
    """Make a key and a request where 2/3 of the certificate's life are over. Returns a sentence for the log while a
    signed certificate is waited for, else empty. Raises TidegaugeError or OSError."""
    folder = _folder(config)
    if folder is None:
        return ""
    present = Path(in_use(config).cert)
    read = certificate_process.read(present)
    if wall() < read.begins + RENEW_AT * (read.ends - read.begins) or (folder / NEXT).exists():
        return ""
    if not (folder / NEXT_REQUEST).exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _request(folder, present)
    said = f"2/3 of the life of {present} are over: sign {folder / NEXT_REQUEST}"
    return f"{said}, and put the certificate at {folder / NEXT}"


def _request(folder: Path, present: Path) -> None:
    """The key first: a request without its key would be of no use."""
    made = certificate_process.request(present)
    _write_secret(folder / NEXT_KEY, made.key.encode())
    write_durably(folder / NEXT_REQUEST, made.request.encode())


def _write_secret(path: Path, data: bytes) -> None:
    """As `write_durably`, of mode 0600 from its first moment."""
    beside = path.with_name(f".{path.name}.part")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    sync_folder(path.parent)


def _folder(config: LinkConfig) -> Path | None:
    return Path(config.renewal) if config.renewal and config.cert else None
