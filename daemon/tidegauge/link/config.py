"""The `[link]` table of `agent.toml` and of `collector.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the broker is and how to speak to it.

    `password_file`: a file with the password in its first line. `ca`, `cert`, `key`: PEM files. A path may be
    `credential:NAME`, one that systemd hands to the unit; a password or key that others may read is refused. `ca`
    alone turns TLS on with the broker's certificate checked against it, `tls = true` without `ca` checks against the
    system's authorities.
    `protocol` "5" also reads the broker's packet limit. `chunk_bytes`: payload of one packet; `window_chunks`: how many
    of them may wait for the collector's answer. `answer_timeout`: seconds until an answer is asked for again.
    Reconnecting waits with full jitter between 0 and a bound that doubles from `backoff_first` to `backoff_most`.
    `status_interval`: how often the retained status is repeated, so that a late will is put right.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 1883
    username: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    protocol: Literal["3.1.1", "5"] = "3.1.1"
    keepalive: Annotated[int, Meta(ge=5, le=3600)] = 30
    chunk_bytes: Annotated[int, Meta(ge=4096, le=1_047_552)] = 256 * 1024
    window_chunks: Annotated[int, Meta(ge=1, le=64)] = 8
    connect_timeout: Seconds = 15.0
    publish_timeout: Seconds = 120.0
    answer_timeout: Seconds = 15.0
    backoff_first: Seconds = 1.0
    backoff_most: Seconds = 300.0
    status_interval: Seconds = 60.0
