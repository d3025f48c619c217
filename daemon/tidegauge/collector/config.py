"""`collector.toml`: what it may hold, and how it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from tidegauge.configuration import load_toml
from tidegauge.link.config import LinkConfig
from tidegauge.link.files import located

Positive = Annotated[int, Meta(ge=1)]


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[http]`: pages, API and metrics. `port` 0 takes a free one. `base`: path before every page, for a proxy.

    `device_metrics`: also metrics by device, at most 20 series each, for boards that can't be scraped.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8420
    base: Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    metrics: bool = True
    device_metrics: bool = True


class ScrapeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[scrape]`: boards that Prometheus can reach itself, for its discovery at `/api/v1/sd`.

    `address`: host and port by device, such as "{device}.boards.example.org:9464"; "" means none. It comes from here
    and never from a board, which could otherwise send Prometheus anywhere. `devices`: patterns of names.
    """

    address: Annotated[str, Meta(pattern=r"^$|^[A-Za-z0-9._\-\[\]:{}]*\{device\}[A-Za-z0-9._\-\[\]:{}]*$")] = ""
    devices: tuple[str, ...] = ("*",)


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`: what one device may send. Sizes in bytes. A bundle is input from elsewhere: nothing is unbounded.

    `device_partial_bytes`, `device_transfers`: files of one device that have begun and not ended.
    """

    manifest_bytes: Positive = 8 << 20
    blob_bytes: Positive = 2 << 30
    device_partial_bytes: Positive = 8 << 30
    device_transfers: Positive = 4096


class ComparisonConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[comparison]`: how many run at once, and the bounds of the process that compares one bundle.

    Sizes in bytes, times in seconds.
    """

    workers: Positive = 1
    seconds: Positive = 900
    cpu_seconds: Positive = 1800
    memory_bytes: Positive = 8 << 30
    file_bytes: Positive = 1 << 30


class CollectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. Paths are absolute after `load`; `compile_library` "" means that there is none."""

    data: Annotated[str, Meta(min_length=1)]
    link: LinkConfig
    compile_library: str = ""
    http: HttpConfig = HttpConfig()
    limits: LimitsConfig = LimitsConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    scrape: ScrapeConfig = ScrapeConfig()

    @property
    def data_folder(self) -> Path:
        return Path(self.data)

    @property
    def library_folder(self) -> Path | None:
        return Path(self.compile_library) if self.compile_library else None


def load(path: Path) -> CollectorConfig:
    """Read a configuration. Relative paths in it are relative to its own folder.

    Raises ConfigurationError that names the file, the key and the cure.
    """
    config = load_toml(path, CollectorConfig)
    folder = path.resolve().parent

    def absolute(name: str) -> str:
        return str(folder / Path(name).expanduser()) if name else ""

    return msgspec.structs.replace(
        config,
        data=absolute(config.data),
        compile_library=absolute(config.compile_library),
        link=located(path, config.link, os.environ),
    )
