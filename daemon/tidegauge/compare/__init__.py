"""Layer comparison: what the device computed against the float model, and which layer is to blame (DESIGN §9).

report = compare("alarm.tidebundle", tempdir="compile/artifacts")
report.culprits[0].layer
"""

from __future__ import annotations

from tidegauge.compare.api import compare
from tidegauge.compare.exact import compare_exact
from tidegauge.compare.exact_frames import merge_exact, pair_frames
from tidegauge.compare.exact_load import compare_folders
from tidegauge.compare.exact_types import ExactComparison, exact_from_json, exact_to_json
from tidegauge.compare.float_traces import is_float_network
from tidegauge.compare.frames import merge_frames
from tidegauge.compare.ladder import compare_rungs, other_run
from tidegauge.compare.load import Source, frame_folders, from_bundle, from_folder, open_frames, open_source
from tidegauge.compare.release import compare_releases
from tidegauge.compare.release_load import open_side
from tidegauge.compare.release_types import ReleaseComparison, release_from_json, release_to_json
from tidegauge.compare.stored import rejudge
from tidegauge.compare.types import Comparison, Culprit, LayerResult, from_json, to_json

__all__ = [
    "Comparison",
    "Culprit",
    "ExactComparison",
    "LayerResult",
    "ReleaseComparison",
    "Source",
    "compare",
    "compare_exact",
    "compare_folders",
    "compare_releases",
    "compare_rungs",
    "exact_from_json",
    "exact_to_json",
    "frame_folders",
    "from_bundle",
    "from_folder",
    "from_json",
    "is_float_network",
    "merge_exact",
    "merge_frames",
    "open_frames",
    "open_side",
    "open_source",
    "other_run",
    "pair_frames",
    "rejudge",
    "release_from_json",
    "release_to_json",
    "to_json",
]
