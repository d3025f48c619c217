#!/usr/bin/env python3
"""Known vulnerabilities of what the locks pin, by pip-audit: of PyPI's data base, and OSV's where that has no answer.

Exit code 1 for a finding, 0 for none, and 0 where no data base can be reached, which is said.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("board.lock", "collector.lock")
SERVICES = ("pypi", "osv")
#: Of a whole lock at one service, seconds.
PATIENCE = 300


def ask(lock: Path, service: str) -> list[dict[str, Any]] | str:
    """What is known of each dependency, or why nothing is."""
    program = Path(sys.executable).parent / "pip-audit"
    command = [str(program), "-r", str(lock), "--require-hashes", "--disable-pip", "-f", "json", "-s", service]
    try:
        done = subprocess.run(
            [*command, "--timeout", "10", "--progress-spinner", "off"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{service} did not answer within {PATIENCE} s"
    try:
        found: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (json.JSONDecodeError, KeyError, TypeError):
        last = (done.stderr.strip() or "no answer").splitlines()[-1]
        return f"{service}: {last[:200]}"
    return found


def judge(lock: str, answers: dict[str, list[dict[str, Any]] | str]) -> tuple[list[str], bool]:
    """Lines to print, and whether there is a finding. `answers` by service."""
    lines, looked, every = [], set(), set()
    findings: dict[str, str] = {}
    for service, answer in answers.items():
        if isinstance(answer, str):
            lines.append(f"{lock}: {answer}")
            continue
        for each in answer:
            every.add(each["name"])
            if "skip_reason" in each:
                continue
            looked.add(each["name"])
            for known in each["vulns"]:
                cure = ", ".join(known["fix_versions"]) or "no release yet"
                findings[f"{each['name']} {known['id']}"] = (
                    f"{lock}: {each['name']} {each['version']}: {known['id']} (cured by {cure}; {service})"
                )
    lines += findings.values()
    if not looked:
        lines.append(f"{lock}: NOT AUDITED: no data base of vulnerabilities could be reached from here")
    else:
        left = sorted(every - looked)
        unknown = f"; no data base knows {', '.join(left)}" if left else ""
        lines.append(f"{lock}: {len(looked)} of {len(every)} packages looked up, {len(findings)} findings{unknown}")
    return lines, bool(findings)


def main() -> None:
    bad = False
    for name in LOCKS:
        answers: dict[str, list[dict[str, Any]] | str] = {}
        for service in SERVICES:
            answers[service] = answer = ask(ROOT / "requirements" / name, service)
            if not isinstance(answer, str) and not any("skip_reason" in each for each in answer):
                break  # the other one is asked for what this one doesn't know
        lines, finding = judge(name, answers)
        print("\n".join(lines))
        bad = bad or finding
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
