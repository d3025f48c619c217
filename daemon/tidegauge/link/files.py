"""Where the files of the link are: beside the configuration, or handed over by systemd; and that secrets are kept."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tidegauge.configuration import ConfigurationError
from tidegauge.link.config import LinkConfig

#: Keys of `[link]` that are paths, and those of them that are secrets.
FILES = ("password_file", "ca", "cert", "key", "renewal")
SECRETS = ("password_file", "key")
#: Beginning of a path that means a credential of the unit (systemd.exec(5), LoadCredential=).
CREDENTIAL = "credential:"


def located(path: Path, link: LinkConfig, environment: Mapping[str, str]) -> LinkConfig:
    """The link's settings with absolute paths. `path`: the configuration file, to whose folder they are relative.

    Raises ConfigurationError for a secret that every user of the machine may read, and for a credential outside of a
    unit. A file that isn't there is the link's to report: it may come later.
    """
    found = {key: _locate(path, key, value, environment) for key in FILES if (value := getattr(link, key))}
    for key in SECRETS:
        if key in found:
            _refuse_if_open(path, key, Path(found[key]))
    return msgspec.structs.replace(link, **found)


def _locate(path: Path, key: str, value: str, environment: Mapping[str, str]) -> str:
    if not value.startswith(CREDENTIAL):
        return str(path.resolve().parent / Path(value).expanduser())
    folder = environment.get("CREDENTIALS_DIRECTORY", "")
    if not folder:
        raise ConfigurationError(
            f"{path}: key `link.{key}` names a credential, and systemd has handed none over",
            f"add LoadCredential={value.removeprefix(CREDENTIAL)}:/path/of/the/file to the unit, or give the path",
        )
    return str(Path(folder) / value.removeprefix(CREDENTIAL))


def _refuse_if_open(path: Path, key: str, file: Path) -> None:
    try:
        mode = file.stat().st_mode
    except OSError:
        return
    if mode & stat.S_IRWXO:
        raise ConfigurationError(
            f"{path}: {file} (key `link.{key}`) is a secret, and every user of this machine may read or write it",
            f"chmod o= {file}",
        )
