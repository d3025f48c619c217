"""Prints docs/exit-codes.md from the table in the code. `make docs`; a test compares the two."""

from __future__ import annotations

from tidegauge.exitcodes import table

HEAD = """\
# Exit codes

Generated from `tidegauge.exitcodes` by `tools/exit_codes_reference.py`. For `compare` the worse wins: 2 before 3 before
1 before 0.
"""


def reference() -> str:
    return f"{HEAD}\n{table()}\n"


if __name__ == "__main__":
    print(reference(), end="")
