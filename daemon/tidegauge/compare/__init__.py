"""Layer comparison: what the device computed against the float model, and which layer is to blame (DESIGN §9)."""

from __future__ import annotations

from tidegauge.compare.exact import compare_exact
from tidegauge.compare.exact_load import compare_folders
from tidegauge.compare.exact_types import ExactComparison, exact_from_json, exact_to_json
from tidegauge.compare.float_traces import is_float_network
from tidegauge.compare.ladder import compare_rungs, other_run
from tidegauge.compare.load import Source, from_bundle, from_folder, open_source
from tidegauge.compare.run import compare
from tidegauge.compare.types import Comparison, Culprit, LayerResult, from_json, to_json

__all__ = [
    "Comparison",
    "Culprit",
    "ExactComparison",
    "LayerResult",
    "Source",
    "compare",
    "compare_exact",
    "compare_folders",
    "compare_rungs",
    "exact_from_json",
    "exact_to_json",
    "from_bundle",
    "from_folder",
    "from_json",
    "is_float_network",
    "open_source",
    "other_run",
    "to_json",
]
