"""The check `model`: it opens on the CPU with fixed shapes, and the profile's picture and output are the model's."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, ok
from tidegauge.runtimes.factory import open_reference


def run(context: Context) -> Finding:
    from tidegauge.pipeline.worker import check_profile  # loads OpenCV: in the child only

    profile = context.required.profile
    try:
        session = open_reference(profile)
        check_profile(profile, session)
    except TidegaugeError as error:
        return failed(error.problem, error.cure)
    source = session.inputs[0]
    return ok(
        f"input {source.name} {source.dtype} {list(source.shape)} as in [preprocess], output {profile.output.name}"
    )


PROBE = Probe(
    id="model",
    title="model against profile: opens on the CPU, fixed shapes, input's shape, layout and type, output's name",
    why="pictures would be fed in another shape or scale than at compile time; a dynamic batch can't be compiled",
    place="anywhere",
    run=run,
    deadline=lambda _context: 120.0,
)
