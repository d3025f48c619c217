"""The check `model`: it opens on the CPU with fixed shapes, and the profile's picture and output are the model's."""

from __future__ import annotations

from pathlib import Path

from tidegauge.errors import TidegaugeError
from tidegauge.preflight import onnx_file
from tidegauge.preflight.context import Context
from tidegauge.preflight.lint.accuracy import normalisation
from tidegauge.preflight.lint.graph import Remark
from tidegauge.preflight.lint.load import load
from tidegauge.preflight.probe import Finding, Probe, failed, ok, warning
from tidegauge.profile import Profile
from tidegauge.runtimes.factory import open_reference


def run(context: Context) -> Finding:
    from tidegauge.pipeline.worker import check_profile  # loads OpenCV: in the child only

    profile = context.required.profile
    try:
        session = open_reference(profile)
        check_profile(profile, session)
    except TidegaugeError as error:
        return failed(error.problem, error.cure)
    twice = _scaled_twice(Path(profile.model), profile)
    if twice:
        return warning(twice[0].found, twice[0].cure)
    source = session.inputs[0]
    return ok(
        f"input {source.name} {source.dtype} {list(source.shape)} as in [preprocess], output {profile.output.name}"
    )


def _scaled_twice(model: Path, profile: Profile) -> list[Remark]:
    """Where the model scales its input itself and the profile too; nothing on a board, which can't read ONNX."""
    if model.suffix != ".onnx" or onnx_file.load(model) is None:
        return []
    return [remark for remark in normalisation(load(model), profile) if remark.status == "failed"]


PROBE = Probe(
    id="model",
    title="model against profile: opens on the CPU, fixed shapes, input's shape, layout and type, output's name",
    why="pictures would be fed in another shape or scale than at compile time; a dynamic batch can't be compiled",
    place="anywhere",
    run=run,
    deadline=lambda _context: 120.0,
)
