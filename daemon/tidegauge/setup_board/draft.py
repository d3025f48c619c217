"""From a few answers to a commented `agent.toml`. Pure."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

import msgspec

from tidegauge.errors import TidegaugeError

PORT = 1883


class Virtual(msgspec.Struct, frozen=True):
    """What stands in for silicon: a module with TI's call shapes, its trace folder and its remote-log server."""

    module: str
    trace_folder: str
    remote_log: str
    remote_log_file: str


class Answers(msgspec.Struct, frozen=True):
    """Paths as they stand in the file. `kind`, `source`: of the camera. `virtual` None on a board."""

    device: str
    state: str
    profile: str
    kind: str
    source: str
    host: str
    port: int
    samples: int
    gap: float
    schema: str = ""
    virtual: Virtual | None = None


def camera(text: str) -> tuple[str, str]:
    """Kind and source of a camera as a person writes it. Raises TidegaugeError.

    A URL, a device, a `gst-launch-1.0` pipeline, or KIND:SOURCE for files (folder:…, video:…, synthetic:…)
    and for an application's socket (tap:…).
    """
    text = text.strip()
    if text.startswith(("rtsp://", "rtsps://")):
        return "rtsp", text
    if re.fullmatch(r"/dev/\S+", text):
        return "v4l2", text
    kind, colon, source = text.partition(":")
    if colon and source and kind in ("folder", "video", "synthetic", "gstreamer", "tap"):
        return kind, source
    if "!" in text:
        return "gstreamer", text
    raise TidegaugeError(
        f"{text!r} is no camera",
        "give rtsp://…, /dev/video0, a GStreamer pipeline, or folder:PATH, video:FILE, synthetic:FOLDER, tap:SOCKET",
    )


def broker(text: str) -> tuple[str, int]:
    """Host and port of HOST or HOST:PORT. Raises TidegaugeError."""
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.path or parts.username or port == 0:
        raise TidegaugeError(
            f"{text!r} is no broker's address", "give HOST or HOST:PORT, such as broker.example.org:1883"
        )
    return host, PORT if port is None else port


def text(value: str) -> str:
    """A TOML string. (JSON escapes what TOML wants escaped, but for one character.)"""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")


def agent_toml(answers: Answers) -> str:
    """The file. Every value that is not an answer is the default, and shown where people change it."""
    schema = f"#:schema {answers.schema}\n" if answers.schema else ""
    return f"""{schema}# The agent on this board, as `tidegauge setup` wrote it. All keys: docs/configuration.md.
# A running agent takes a change of most keys at once; `tidegauge status` names those that wait for a restart.

device = {text(answers.device)}  # this board's name; also its MQTT client id
state = {text(answers.state)}  # what must survive a reboot: reference, evidence, golden tensors, spool
profile = {text(answers.profile)}  # the model: its files, its input, what its output's difference means

[camera]
kind = {text(answers.kind)}  # rtsp, v4l2, gstreamer, video, folder, synthetic
source = {text(answers.source)}

[link]  # the MQTT broker; without it everything waits in the spool
host = {text(answers.host)}
port = {answers.port}
# ca = "/etc/tidegauge/ca.pem"      # turns TLS on
# cert = "/etc/tidegauge/board.pem"
# key = "/etc/tidegauge/board.key"

[shadow]  # which frames are compared with the CPU
gap_mean = {answers.gap!r}  # seconds between samples on average
gap_floor = {round(min(20.0, answers.gap / 3), 3)!r}  # and at least
cpu_share = 0.05  # of one core, at most

[acceptance]  # the first measurement; at the default gap it takes a day, so that night and day are both in it
samples = {answers.samples}

[capture]  # traces on an alarm
{_capture(answers.virtual)}quiet_hours = ""  # such as "22:00-06:00": no capture then
privacy = "full"  # "statistics" sends fingerprints only, "golden" traces a golden input instead of a live one

[metrics]  # /metrics and /healthz
host = "127.0.0.1"  # "0.0.0.0" where Prometheus scrapes from another machine
port = 9464
{_runtime(answers.virtual)}"""


def _capture(virtual: Virtual | None) -> str:
    if virtual is None:
        return ""
    return (
        f"trace_folder = {text(virtual.trace_folder)}\nremote_log = {text(virtual.remote_log)}\n"
        f"remote_log_file = {text(virtual.remote_log_file)}\nroom_mib = 64\n"
    )


def _runtime(virtual: Virtual | None) -> str:
    if virtual is None:
        return ""
    return f"""
[runtime]
module = {text(virtual.module)}  # VIRTUAL: an emulated board, for trials

[stand_back]  # a PC is no board: its load and heat are those of whatever else it does
temperature = 0.0
load = 0.0
latency_rise = 0.0
"""
