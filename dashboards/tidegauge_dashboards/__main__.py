"""`make dashboards`: writes the generated files; with `--check` it only says which of them are not current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidegauge_dashboards.files import RUNBOOK, files, with_table

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT)
    parser.add_argument("--runbook", default=RUNBOOK, help="address of the runbook that alerts link to")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    page = ROOT.parent / "docs" / "runbook.md"
    made = {**files(options.runbook), str(page): with_table(page.read_text())}
    for name, content in made.items():
        path: Path = options.folder / name
        if options.check:
            if not path.exists() or path.read_text() != content:
                stale.append(name)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    if stale:
        print(f"not current, run `make dashboards`: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
