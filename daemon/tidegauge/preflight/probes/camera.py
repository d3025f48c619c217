"""The check `camera`: the source opens and gives one picture."""

from __future__ import annotations

from pathlib import Path

from tidegauge.camera.faults import CameraFault
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok
from tidegauge.preflight.probes import camera_device


def run(context: Context) -> Finding:
    from tidegauge.camera.open import open_source  # loads OpenCV: in the child only

    camera = context.required.camera
    if camera.kind == "tap":
        return not_applicable("an application hands over its frames (docs/tap.md)")
    if not context.virtual and camera_device.missing(context, *camera_device.named(camera)) is not None:
        return not_applicable("cure the check `camera-device` first")
    if not camera.live and not Path(camera.source).exists():
        return failed(
            f"{camera.source} (key `camera.source`) does not exist",
            f"give the path for a camera of kind `{camera.kind}`; for a device check cable, driver and overlay",
        )
    try:
        source = open_source(camera)
        try:
            picture = source.read()
        finally:
            source.close()
    except CameraFault as error:
        return failed(error.problem, error.cure)
    named = source.description if camera.live else camera.source
    if picture is None:
        return failed(f"{named} ends without a picture", "give a source with pictures (key `camera.source`)")
    height, width = picture.pixels.shape[:2]
    return ok(f"{camera.kind} {named}: a picture of {width}×{height}")


def _deadline(context: Context) -> float:
    camera = context.required.camera
    return camera.open_timeout + camera.read_deadline + 5.0


PROBE = Probe(
    id="camera",
    title="camera: opens, and gives a picture",
    why="no frames, no watching",
    place="anywhere",
    run=run,
    deadline=lambda context: _deadline(context) if context.settings else 10.0,
)
