#!/usr/bin/env python3
"""CycloneDX lists (1.6, JSON) of what the locks pin, with their hashes: one for a board, one for a collector, one for
development. Made from the lock files alone, so that two builds of one commit give the same components.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tidegauge import __version__

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {"board": "board.lock", "collector": "collector.lock", "development": "dev.lock"}


def pinned(lock: Path) -> dict[str, str]:
    """Version by name of each line of a lock that pins one."""
    lines = (line.split(";")[0].strip(" \\") for line in lock.read_text().splitlines() if line[:1].isalnum())
    return {name.lower().replace("_", "-"): version for name, _, version in (line.partition("==") for line in lines)}


def bill(lock: Path, to: Path) -> dict[str, Any]:
    """Write the list of one lock; returns it. Raises SystemExit where it is not what the lock pins."""
    program = Path(sys.executable).parent / "cyclonedx-py"
    project = ("--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "application")
    options = ("--sv", "1.6", "--of", "JSON", "--output-reproducible", "-o", str(to))
    command = [str(program), "requirements", *project, *options, str(lock)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cyclonedx-py failed on {lock}: {done.stderr}")
    found: dict[str, Any] = json.loads(to.read_text())
    found["metadata"]["component"]["version"] = __version__
    to.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    listed = {part["name"].lower().replace("_", "-"): part["version"] for part in found["components"]}
    if listed != pinned(lock):
        apart = sorted(set(listed.items()) ^ set(pinned(lock).items()))
        raise SystemExit(f"{to} is not what {lock} pins: {apart[:5]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "sbom", help="folder")
    parser.add_argument("--only", choices=LOCKS)
    arguments = parser.parse_args()
    arguments.to.mkdir(parents=True, exist_ok=True)
    for name, lock in LOCKS.items():
        if arguments.only in (None, name):
            file = arguments.to / f"tidegauge-{name}.cdx.json"
            found = bill(ROOT / "requirements" / lock, file)
            hashes = sum(bool(part.get("hashes") or part.get("externalReferences")) for part in found["components"])
            print(f"{file}: {len(found['components'])} components, {hashes} of them with hashes")


if __name__ == "__main__":
    main()
