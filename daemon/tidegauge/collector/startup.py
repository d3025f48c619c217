"""What can refuse the start of a collector: the data folder, the compile library, the port.

Apart from the rest, since the rest takes seconds to import, which a refusal should not.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from tidegauge import log_output
from tidegauge.collector.config import CollectorConfig, HttpConfig
from tidegauge.errors import TidegaugeError

#: In the data folder while the collector runs: {"url": …}.
URL_FILE = "collector.json"


def begin_log() -> log_output.Output:
    """Log lines to the journal where that is behind stderr, else there: time, level, part, sentence."""
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    output = log_output.begin("tidegauge-collector", text)
    for noisy in ("uvicorn", "uvicorn.error", "litestar", "httpx", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # DBOS writes to stderr by itself, past us, unless its logger has a handler already.
    logging.getLogger("dbos").addHandler(logging.NullHandler())
    return output


@contextlib.contextmanager
def claimed(config: CollectorConfig) -> Iterator[socket.socket]:
    """Hold the data folder and the port; yields the bound socket. Raises TidegaugeError."""
    check_library(config.library_folder)
    check_certificate(config.http)
    with only_one(config.data_folder), listen(config.http) as listener:
        yield listener


@contextlib.contextmanager
def only_one(data: Path) -> Iterator[None]:
    """Make the data folder, and hold a lock on it: two collectors on one SQLite file would answer for each other."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("a")
    except OSError as error:
        raise TidegaugeError(
            f"the data folder {data} can't be used ({error.strerror})",
            "set the key `data` to a folder that this user may write",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TidegaugeError(
                f"another collector is running on the data folder {data}", "stop it, or set another folder as `data`"
            ) from error
        (data / URL_FILE).unlink(missing_ok=True)
        yield


def listen(http: HttpConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((http.host, http.port))
    except OSError as error:
        listener.close()
        raise TidegaugeError(
            f"the collector can't listen on {http.host}:{http.port} ({error.strerror})",
            "stop what listens there, or set the keys `http.host` and `http.port` (0 takes a free port)",
        ) from error
    return listener


def check_certificate(http: HttpConfig) -> None:
    if not http.certificate:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(http.certificate, http.key, password=lambda: b"")
    except (OSError, ssl.SSLError) as error:
        raise TidegaugeError(
            f"the certificate {http.certificate} with the key {http.key} can't be used ({error})",
            "correct `http.certificate` and `http.key`: PEM files that belong together, the key without a password",
        ) from error


def check_library(folder: Path | None) -> None:
    if folder is not None and not folder.is_dir():
        raise TidegaugeError(
            f"the compile library {folder} is not a folder", "make it, or correct the key `compile_library`"
        )
