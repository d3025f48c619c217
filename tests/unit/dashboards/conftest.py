"""The generator is no part of the installed package: its folder is put on the path here."""

from __future__ import annotations

import sys
from pathlib import Path

DASHBOARDS = Path(__file__).resolve().parents[3] / "dashboards"
sys.path.insert(0, str(DASHBOARDS))
