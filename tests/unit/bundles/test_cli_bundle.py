"""`tidegauge bundle`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tidegauge.bundles.errors import BundleError
from tidegauge.cli.bundle import command


def invoke(*arguments: Any) -> str:
    result = CliRunner().invoke(command, [str(item) for item in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_show_export_import(tmp_path: Path, make_bundle: Any) -> None:
    manifest = make_bundle(tmp_path / "bundle")
    text = invoke("show", tmp_path / "bundle")
    assert "cam-1 (VIRTUAL board)" in text
    assert "The loss [bold]has[/] risen." in text, "text of a bundle is not markup"
    assert "1x1x1x16x16x16" in text
    assert json.loads(invoke("show", "--json", tmp_path / "bundle"))["bundle_id"] == manifest.bundle_id
    invoke("export", tmp_path / "bundle", tmp_path / "b.tidebundle")
    assert "3 blobs, all checked" in invoke("import", tmp_path / "b.tidebundle", tmp_path / "again")
    assert invoke("show", tmp_path / "b.tidebundle") == invoke("show", tmp_path / "again")


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, make_bundle: Any) -> None:
    cause = make_bundle(tmp_path / "probe").cause
    forged = msgspec.structs.replace(cause, message="\x1b]0;owned\x07\x9b31m")
    make_bundle(tmp_path / "bundle", cause=forged)
    text = invoke("show", tmp_path / "bundle")
    assert "\x1b" not in text
    assert "\x9b" not in text


def test_absent_paths_have_a_cure(tmp_path: Path) -> None:
    for arguments in (("show", tmp_path / "x"), ("export", tmp_path / "x", tmp_path / "y"), ("import", "x", "y")):
        with pytest.raises(BundleError, match="does not exist"):
            invoke(*arguments)
