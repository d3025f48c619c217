"""The check `camera-device`: the device nodes, links and tuning files that the camera's source names.

Source of the links' names: TI's setup_cameras.sh (edgeai-gst-apps), which makes /dev/video-imx219-cam0,
/dev/v4l-imx219-subdev0 and /dev/video-usb-cam0 for the cameras that it finds, and routes the sensor to the capture
node. A CSI camera without its overlay, its cable or that script has no link.
"""

from __future__ import annotations

import re

from tidegauge.camera.config import CameraConfig
from tidegauge.preflight.context import Context
from tidegauge.preflight.probe import Finding, Probe, failed, not_applicable, ok

_DEVICE = re.compile(r"(?<![\w./-])/dev/[\w./-]+", re.ASCII)
_TUNING = re.compile(r"\bdcc-(?:isp|2a)-file=\"?(/[^\s\"!]+)", re.ASCII)
_SCRIPT = "/opt/edgeai-gst-apps/scripts/setup_cameras.sh"


def run(context: Context) -> Finding:
    camera = context.required.camera
    devices, tuning = named(camera)
    if not devices and not tuning:
        return not_applicable(f"a camera of kind `{camera.kind}` has no device on this board")
    problem = missing(context, devices, tuning)
    return problem or ok(", ".join(_shown(context, path) for path in (*devices, *tuning)))


def named(camera: CameraConfig) -> tuple[list[str], list[str]]:
    """Device nodes and tuning files in a source's text, in order, each once."""
    if camera.kind == "v4l2":
        return [camera.source], []
    if camera.kind != "gstreamer":
        return [], []
    return list(dict.fromkeys(_DEVICE.findall(camera.source))), list(dict.fromkeys(_TUNING.findall(camera.source)))


def missing(context: Context, devices: list[str], tuning: list[str]) -> Finding | None:
    """The first that is not there."""
    for path in devices:
        try:
            context.real(path)
        except OSError:
            if context.path(path).is_symlink():
                target = context.path(path).readlink()
                return failed(f"the link {path} leads to {target}, which does not exist", _device_cure(path))
            there = sorted(item.name for item in context.path("/dev").glob("video*"))
            others = f"; there are {', '.join(there)}" if there else "; there is no video device at all"
            return failed(f"{path} does not exist{others}", _device_cure(path))
    for path in tuning:
        try:
            context.real(path)
        except OSError:
            beside = sorted(item.name for item in context.path(path).parent.glob("dcc_*"))
            others = f"; beside it: {', '.join(beside)}" if beside else ""
            return failed(
                f"the sensor's tuning file {path} does not exist{others}",
                "give the name that this image has (key `camera.source`): releases name these files differently",
            )
    return None


def _device_cure(path: str) -> str:
    if "usb" in path or re.fullmatch(r"/dev/video\d+", path):
        return f"check cable and power, or give another device (key `camera.source`); {_SCRIPT} lists the cameras"
    return f"enable the sensor's overlay in the boot environment, check its cable, reboot, and run {_SCRIPT}"


def _shown(context: Context, path: str) -> str:
    link = context.path(path)
    return f"{path} → {link.readlink()}" if link.is_symlink() else path


PROBE = Probe(
    id="camera-device",
    title="device nodes, links and tuning files that the camera's source names",
    why="a pipeline that ends at once, with GStreamer's word for it only",
    place="board",
    run=run,
)
