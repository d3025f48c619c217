"""Put figures of `tidegauge evaluate` and `tidegauge bench` into a page of the documentation.

    tools/figures_page.py docs/detectors.md detectors=/tmp/detectors.json attribution=/tmp/attribution.json

What stands between `<!-- NAME -->` and `<!-- end of NAME -->` becomes the tables of the JSON file that the command
wrote with `--json`. Several files of one NAME are joined; of a figure that is in two of them the later one counts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from tidegauge.evaluation.figures import Report, markdown


def joined(reports: list[Report]) -> Report:
    figures = {(figure.group, figure.name): figure for report in reports for figure in report.figures}
    quick = any(report.quick for report in reports)
    return Report(reports[-1].seed, quick, list(figures.values()), reports[-1].not_run)


def replaced(page: str, name: str, tables: str) -> str:
    """Raises SystemExit where the page has no place of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page has no place {begin} … {end}")
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{tables.strip()}\n\n{end}{rest.split(end)[1]}"


def main() -> None:
    if len(sys.argv) < 3 or not all("=" in each for each in sys.argv[2:]):
        raise SystemExit(__doc__)
    path = Path(sys.argv[1])
    files: dict[str, list[Report]] = {}
    for each in sys.argv[2:]:
        name, _, file = each.partition("=")
        files.setdefault(name, []).append(msgspec.json.decode(Path(file).read_bytes(), type=Report))
    page = path.read_text()
    for name, reports in files.items():
        page = replaced(page, name, markdown(joined(reports)))
    path.write_text(page)


if __name__ == "__main__":
    main()
