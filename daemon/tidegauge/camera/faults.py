"""What goes wrong with a camera, as a word for a metric and a sentence for a person."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from tidegauge.errors import TidegaugeError

FaultKind = Literal[
    "open_failed",
    "open_timeout",
    "read_failed",
    "read_timeout",
    "no_pictures",
    "size_changed",
    "protocol",
    "crashed",
]


class CameraFault(TidegaugeError):
    """The source can't give a picture. A camera worker reports it and exits; its replacement opens the source anew."""

    def __init__(self, kind: FaultKind, problem: str, cure: str) -> None:
        self.kind: FaultKind = kind
        super().__init__(problem, cure)


def shown_pipeline(text: str) -> str:
    """A pipeline without user and password of the URLs in it."""
    return re.sub(r"(://)[^/@\s\"']+@", r"\1", text)


def without_credentials(url: str) -> str:
    """The URL without user, password and query, fit for logs, metrics and bundles."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
