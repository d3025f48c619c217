"""The journal's catalogue of messages: current, whole, and taken by systemd's own reader of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from needs import unless
from tidegauge.collector.log_kinds import KINDS as OF_COLLECTOR
from tidegauge.log_kinds import KINDS as OF_AGENT
from unit.docs.generators import ROOT, tool

KINDS = (*OF_AGENT, *OF_COLLECTOR)
CATALOG = ROOT / "systemd" / "tidegauge.catalog"

needs_journalctl = unless(shutil.which("journalctl") is not None, "journalctl is not installed")


def test_it_is_what_the_code_says() -> None:
    assert CATALOG.read_text() == tool("journal_catalog").catalog(), "run `make docs`"


def test_it_has_an_entry_for_each_id_with_effect_and_cure() -> None:
    entries = dict(re.findall(r"(?ms)^-- ([0-9a-f]{32})\n(.*?)(?=^-- |\Z)", CATALOG.read_text()))
    assert set(entries) == {kind.id for kind in KINDS}
    for kind in KINDS:
        text = " ".join(entries[kind.id].split())
        assert f"Subject: {kind.subject} Defined-By: Tidegauge" in text
        assert f"{kind.effect} What to do: {kind.cure}" in text


@needs_journalctl
def test_systemd_takes_it_whole(tmp_path: Path) -> None:
    for folder in ("usr/lib/systemd/catalog", "var/lib/systemd/catalog"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(CATALOG, tmp_path / "usr/lib/systemd/catalog")

    def journalctl(*arguments: str) -> str:
        command = ["journalctl", f"--root={tmp_path}", "--no-pager", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    journalctl("--update-catalog")
    listed = {line.split()[0]: line for line in journalctl("--list-catalog").splitlines()}
    assert set(listed) == {kind.id for kind in KINDS}
    for kind in KINDS:
        assert listed[kind.id].endswith(f"Tidegauge: {kind.subject}")
