"""`collector.toml`: what it may hold, and how it is read."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tidegauge.configuration import ConfigurationError, load_toml
from tidegauge.link.config import LinkConfig
from tidegauge.link.files import located

Positive = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Days = Annotated[float, Meta(ge=0)]
Role = Literal["ingest", "compare"]
TrustPolicy = Literal["first_use", "registered"]


class DatabaseConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[database]`: a PostgreSQL that several processes share. `url` "": a SQLite file in `data`.

    `url`: postgresql://user@host/database; its password in the first line of `password_file`, or as libpq takes it.
    """

    url: Annotated[str, Meta(pattern="^$|^postgresql://")] = ""
    password_file: str = ""


class BlobsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[blobs]`: an S3-compatible store that several processes share. `bucket` "": a folder in `data`.

    `endpoint`: its URL where it is not Amazon's. The keys come from the environment: AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.
    """

    bucket: str = ""
    prefix: str = ""
    endpoint: Annotated[str, Meta(pattern="^$|^https?://")] = ""
    region: str = ""


class IngestConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[ingest]`: taking bundles in. `group`: name under which several processes share the messages of one broker
    (`$share`), which needs a shared database and shared blobs; "" for a single one.

    `wait_days`: a bundle of which no blob has come for so long is compared with what is here, or called incomplete.
    """

    group: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{0,64}$")] = ""
    wait_days: Annotated[float, Meta(gt=0)] = 7.0


class PullRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[[pull.rules]]`: which blobs of a bundle are asked for, where device, detector and verdict match a pattern each.

    `blobs` "all"; "suspicious": of the traces only layers whose fingerprint looks wrong, with their neighbours;
    "manifest": none, the board deletes them.
    """

    blobs: Literal["all", "suspicious", "manifest"] = "all"
    devices: tuple[str, ...] = ("*",)
    detectors: tuple[str, ...] = ("*",)
    verdicts: tuple[str, ...] = ("*",)


class PullConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[pull]`: what is asked of boards. The first rule that matches decides; without one all blobs are asked for.

    `device_mib_per_day`: blobs taken from one device on a day (UTC); the rest waits on the board. 0: no limit.
    """

    rules: tuple[PullRule, ...] = ()
    device_mib_per_day: Count = 0


class RetentionConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[retention]`: what is deleted by itself. 0: never.

    Days after which a bundle's blobs and report go, by how its comparison ended: with a culprit, fine, uncertain
    (coverage too low), failed or incomplete. `max_bytes` of all blobs: then the fine ones go first, oldest first.
    `history_days`: after which a board's hours of history go, and what it told of bundles that it gave up.
    `alarm_days`: after which a message of an alarm that is over goes. `run_days`: after which a comparison goes that a
    person has asked for, with its report and the traces that were uploaded for it; not one that is pinned.
    `orphan_hours`: a blob that nothing needs is kept so long, since its bundle may be on the way.
    """

    culprit_days: Days = 0.0
    fine_days: Days = 0.0
    uncertain_days: Days = 0.0
    failed_days: Days = 0.0
    max_bytes: Count = 0
    history_days: Days = 0.0
    alarm_days: Days = 0.0
    run_days: Days = 0.0
    orphan_hours: Annotated[float, Meta(ge=1)] = 24.0


class WorkersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[workers]`: how the processes of a collector watch over each other. Seconds.

    Each writes its heartbeat every `heartbeat`; one that has not for `dead_after` is taken for dead: its comparisons go
    on elsewhere, and so do its checks of files that have come whole. `attempts`: of one comparison, before its bundle
    is given up.
    """

    heartbeat: Seconds = 5.0
    dead_after: Seconds = 15.0
    attempts: Positive = 4


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[http]`: pages, API and metrics. `port` 0 takes a free one. `base`: path before every page, for a proxy.

    `device_metrics`: also metrics by device, at most 20 series each, for boards that can't be scraped. `certificate`,
    `key`: PEM files, with which the collector itself speaks HTTPS; "" for HTTP.
    """

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8420
    base: Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    metrics: bool = True
    device_metrics: bool = True
    certificate: str = ""
    key: str = ""


class AccessConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[access]`: who may see and who may do things. Tokens are made by `tidegauge collector token new`.

    `local`: role of whoever is on this computer, while `http.host` is a loopback address; "none": a token is due as
    well. `proxies`: addresses or networks of reverse proxies whose `user_header` and `group_header` are believed, and
    nobody else's. Whom they let through is a viewer; `operators` and `operator_groups` (patterns) are operators.
    `pictures`: role that is due for what shows what a camera saw: tensors, whole bundles, and reports.
    `session_hours`: after which a browser logs in anew. `attempts_per_minute`: wrong tokens from one address.
    """

    local: Literal["operator", "viewer", "none"] = "operator"
    proxies: tuple[str, ...] = ()
    user_header: Annotated[str, Meta(pattern="^[A-Za-z0-9-]*$")] = "X-Forwarded-User"
    group_header: Annotated[str, Meta(pattern="^[A-Za-z0-9-]*$")] = "X-Forwarded-Groups"
    operators: tuple[str, ...] = ()
    operator_groups: tuple[str, ...] = ()
    pictures: Literal["viewer", "operator"] = "viewer"
    session_hours: Annotated[float, Meta(gt=0, le=720)] = 12.0
    attempts_per_minute: Positive = 10


class UploadsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[uploads]`: files that operators send through pages and API. `max_bytes` of one, `unpacked_bytes` of a zip's
    content. `per_hour` of one operator, `at_once` of all. One of which nothing has come for `idle_seconds`, or that is
    slower than `least_bytes_per_second` on average, is given up.
    """

    max_bytes: Positive = 4 << 30
    unpacked_bytes: Positive = 8 << 30
    per_hour: Positive = 60
    at_once: Positive = 4
    idle_seconds: Seconds = 30.0
    least_bytes_per_second: Count = 4096


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


class TrustConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[trust]`: which device keys are believed.

    `devices` "first_use": the key of a device's first signed manifest is its own from then on; "registered": only keys
    that a person has given by `tidegauge collector keys register`. `keep_commands`: signed commands of operators that a
    board was not there to hear are sent again when it is, until they expire.

    `answer_key`: file with the private key (`tidegauge keys new`) that signs answers to boards; "": `answers.key` in
    `data`, made at the first start. Processes of one collector share a key, or boards pin the key of each.
    """

    devices: TrustPolicy = "first_use"
    keep_commands: bool = True
    answer_key: str = ""


class CommandsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[commands]`: whether operators can command boards through pages and API. `key`: file with an operator's private
    key (`tidegauge keys new`), with which this collector signs them; "" turns it off.

    Whoever is an operator here then commands every board that pins this key (`commands.operators` in its agent.toml).
    """

    key: str = ""


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
    """The whole file. Paths are absolute after `load`; `compile_library` "" means that there is none.

    `roles`: what this process does besides serving pages, API and metrics: takes bundles in, runs comparisons;
    none of them: a replica for pages only.
    """

    data: Annotated[str, Meta(min_length=1)]
    link: LinkConfig
    compile_library: str = ""
    http: HttpConfig = HttpConfig()
    access: AccessConfig = AccessConfig()
    uploads: UploadsConfig = UploadsConfig()
    commands: CommandsConfig = CommandsConfig()
    limits: LimitsConfig = LimitsConfig()
    comparison: ComparisonConfig = ComparisonConfig()
    scrape: ScrapeConfig = ScrapeConfig()
    trust: TrustConfig = TrustConfig()
    database: DatabaseConfig = DatabaseConfig()
    blobs: BlobsConfig = BlobsConfig()
    ingest: IngestConfig = IngestConfig()
    workers: WorkersConfig = WorkersConfig()
    pull: PullConfig = PullConfig()
    retention: RetentionConfig = RetentionConfig()
    roles: tuple[Role, ...] = ("ingest", "compare")

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
    _check(path, config)
    folder = path.resolve().parent

    def absolute(name: str) -> str:
        return str(folder / Path(name).expanduser()) if name else ""

    return msgspec.structs.replace(
        config,
        data=absolute(config.data),
        compile_library=absolute(config.compile_library),
        database=msgspec.structs.replace(config.database, password_file=absolute(config.database.password_file)),
        http=msgspec.structs.replace(
            config.http, certificate=absolute(config.http.certificate), key=absolute(config.http.key)
        ),
        commands=msgspec.structs.replace(config.commands, key=absolute(config.commands.key)),
        trust=msgspec.structs.replace(config.trust, answer_key=absolute(config.trust.answer_key)),
        link=located(path, config.link, os.environ),
    )


def _check(path: Path, config: CollectorConfig) -> None:
    """What can't be said of one key alone."""
    if bool(config.database.url) != bool(config.blobs.bucket):
        given, lacks = ("database.url", "blobs.bucket") if config.database.url else ("blobs.bucket", "database.url")
        raise ConfigurationError(
            f"{path} gives `{given}` without `{lacks}`",
            "share both among the processes, or neither: one holds the names of what is in the other",
        )
    if config.ingest.group and not config.database.url:
        raise ConfigurationError(
            f"{path} gives `ingest.group`, but this collector keeps its database to itself",
            "give `database.url` and `blobs.bucket`, which all processes of a group share, or leave the group out",
        )
    if set(config.roles) != {"ingest", "compare"} and not config.database.url:
        raise ConfigurationError(
            f"{path} leaves a role out, which no other process can take on without a shared database",
            "give `database.url` and `blobs.bucket`, or leave out the key `roles`",
        )
    for proxy in config.access.proxies:
        try:
            ipaddress.ip_network(proxy, strict=False)
        except ValueError as error:
            raise ConfigurationError(
                f"{path} names {proxy!r} in `access.proxies`, which is no address",
                'write an address or a network, such as "10.0.0.5" or "10.0.0.0/24"',
            ) from error
    if bool(config.http.certificate) != bool(config.http.key):
        raise ConfigurationError(
            f"{path} gives one of `http.certificate` and `http.key`", "give both, for HTTPS, or none"
        )
    if config.commands.key and not config.trust.keep_commands:
        raise ConfigurationError(
            f"{path} gives `commands.key`, and `trust.keep_commands` = false, so that no answer would be heard",
            "leave out one of them",
        )
    if config.workers.dead_after < 2 * config.workers.heartbeat:
        raise ConfigurationError(
            f"{path} takes a process for dead after `workers.dead_after` = {config.workers.dead_after:g} s",
            f"give at least twice `workers.heartbeat` ({config.workers.heartbeat:g} s)",
        )
