"""The `[link]` table of `agent.toml` and of `collector.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.signing import PublicKey

#: Two local times of a day, or nothing.
SPAN = r"^(([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9])?$"
Seconds = Annotated[float, Meta(gt=0)]


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the broker is and how to speak to it.

    `password_file`: a file with the password in its first line. `ca`, `cert`, `key`: PEM files. A path may be
    `credential:NAME`, one that systemd hands to the unit; a password or key that others may read is refused. `ca`
    alone turns TLS on with the broker's certificate checked against it, `tls = true` without `ca` checks against the
    system's authorities.
    `renewal`: folder where a board asks for a new certificate at 2/3 of the old one's life, and takes it from (empty:
    `certificates` in its state folder); the collector doesn't, unless a folder is given.
    `protocol` "5" also reads the broker's packet limit. `chunk_bytes`: payload of one packet; `window_chunks`: how many
    of them may wait for the collector's answer. `answer_timeout`: seconds until an answer is asked for again.
    Reconnecting waits with full jitter between 0 and a bound that doubles from `backoff_first` to `backoff_most`.
    `status_interval`: how often the retained status is repeated, so that a late will is put right.

    Only a board heeds the rest. `connect_jitter`: its first connection, and the first after one that stood, waits up to
    so many seconds at random, so that a fleet doesn't come all at once. Bundles take at most `bytes_per_second` (0: no
    limit), and their blobs go between the local times of `upload_window` only, such as "22:00-06:00" (empty: always);
    what is small goes at any time. `mib_per_day`: blobs that a day may cost, whatever the collector asks for.
    `collector_keys`: public keys (64 hexadecimal digits, from `tidegauge collector keys own`) of which the board
    believes answers. Without one it believes whoever may publish them, and deletes on that word what it has sent.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=1, le=65535)] = 1883
    username: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    renewal: str = ""
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
    connect_jitter: Annotated[float, Meta(ge=0)] = 5.0
    bytes_per_second: Annotated[int, Meta(ge=0)] = 0
    upload_window: Annotated[str, Meta(pattern=SPAN)] = ""
    mib_per_day: Annotated[int, Meta(ge=1)] = 4096
    collector_keys: tuple[PublicKey, ...] = ()
