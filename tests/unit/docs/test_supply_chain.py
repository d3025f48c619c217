"""What a release says of its own parts: the locks' hashes, the CycloneDX lists, the audit, and SECURITY.md's tests."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unit.docs.generators import ROOT, tool


@pytest.mark.parametrize("lock", ["board.lock", "collector.lock", "dev.lock"])
def test_each_pin_has_its_hashes(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    pins = [entry for entry in entries if re.match(r"[A-Za-z0-9]", entry)]
    assert pins
    for entry in pins:
        assert re.match(r"[A-Za-z0-9._-]+(\[[^]]*\])?==\S+", entry), entry.splitlines()[0]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


def test_the_list_of_a_board_is_what_its_lock_pins(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "sbom.py"), "--only", "board", "--to", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "tidegauge-board.cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "tidegauge"
    listed = {part["name"]: part for part in found["components"]}
    assert {name: part["version"] for name, part in listed.items()} == tool("sbom").pinned(
        ROOT / "requirements" / "board.lock"
    )
    lock = (ROOT / "requirements" / "board.lock").read_text()
    for name, part in listed.items():
        hashes = [each["content"] for ref in part["externalReferences"] for each in ref.get("hashes", [])]
        assert hashes, name
        assert all(each in lock for each in hashes), name


SKIPPED = {"name": "a", "skip_reason": "not found"}
CLEAN = {"name": "a", "version": "1", "vulns": []}
BAD = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}


def test_an_audit_without_a_data_base_is_never_a_clean_one() -> None:
    judge = tool("audit").judge
    for answers in ({"pypi": [SKIPPED], "osv": "osv: unreachable"}, {"pypi": "pypi: no answer"}):
        lines, bad = judge("x.lock", answers)
        assert not bad
        assert "NOT AUDITED" in lines[-1]
    lines, bad = judge("x.lock", {"pypi": [SKIPPED, {**CLEAN, "name": "c"}]})
    assert not bad
    assert "1 of 2 packages looked up, 0 findings; no data base knows a" in lines[-1]


def test_a_finding_is_named_with_its_cure_and_fails() -> None:
    lines, bad = tool("audit").judge("x.lock", {"pypi": [SKIPPED, BAD], "osv": [CLEAN, BAD]})
    assert bad
    assert [line for line in lines if "CVE-1" in line] == ["x.lock: b 2: CVE-1 (cured by 3; osv)"]


def test_every_test_that_the_threat_table_names_exists() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")][2:]
    assert len(table) >= 20
    named = 0
    for row in table:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4, row
        assert re.search(r"`tests/", cells[3]), f"no test: {row}"
        for path, name in re.findall(r"`(tests/[^`:]+)(?:::([^`]+))?`", cells[3]):
            named += 1
            found = ROOT / path
            assert found.exists(), f"{path} does not exist"
            files = [found] if found.is_file() else list(found.rglob("test_*.py"))
            assert files, f"{path} holds no test"
            assert not name or re.search(rf"def {re.escape(name)}\(", found.read_text()), f"{path} has no {name}"
    assert named >= 25
