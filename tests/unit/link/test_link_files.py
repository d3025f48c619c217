"""Where the link's files are, and that a secret is nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegauge.configuration import ConfigurationError
from tidegauge.link.config import LinkConfig
from tidegauge.link.files import located


def test_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    link = located(tmp_path / "agent.toml", LinkConfig(ca="ca.pem", key="/etc/board.key"), {})
    assert (link.ca, link.key, link.cert) == (str(tmp_path / "ca.pem"), "/etc/board.key", "")


@pytest.mark.parametrize("key", ["key", "password_file"])
@pytest.mark.parametrize("mode", [0o604, 0o644, 0o602])
def test_secret_that_others_may_read_is_refused(tmp_path: Path, key: str, mode: int) -> None:
    file = tmp_path / "secret"
    file.write_text("x")
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"link.{key}") as refused:
        located(tmp_path / "agent.toml", LinkConfig(**{key: "secret"}), {})
    assert refused.value.cure == f"chmod o= {file}"
    file.chmod(0o640)
    assert getattr(located(tmp_path / "agent.toml", LinkConfig(**{key: "secret"}), {}), key) == str(file)


def test_certificates_may_be_public(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    (tmp_path / "ca.pem").chmod(0o644)
    located(tmp_path / "agent.toml", LinkConfig(ca="ca.pem", cert="ca.pem"), {})


def test_credential_of_the_unit(tmp_path: Path) -> None:
    (tmp_path / "board.key").touch(mode=0o400)
    link = LinkConfig(key="credential:board.key")
    found = located(Path("agent.toml"), link, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert found.key == str(tmp_path / "board.key")
    with pytest.raises(ConfigurationError, match=r"LoadCredential=board\.key"):
        located(Path("agent.toml"), link, {})
