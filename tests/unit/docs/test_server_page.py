"""The server guide's commands, which `make board-test` runs in a Debian tree: it finds them on the page by a marker."""

from __future__ import annotations

import re

from board.server import PAGE, guide, packages


def test_every_block_of_the_guide_is_run_in_the_tree_but_the_one_that_fetches_wheels() -> None:
    text = PAGE.read_text()
    blocks = re.findall(r"(?m)^```sh$", text)
    run = guide(text)
    assert len(run) == len(blocks) - 1 and len(run) >= 8
    assert all(heading for heading, _ in run)
    assert any("systemctl enable --now tidegauge-collector" in commands for _, commands in run)
    assert {"mosquitto", "prometheus", "prometheus-alertmanager", "postgresql"} <= set(packages(text))
