"""Tables of `agent.toml` about the inputs: light contexts, the camera's health, input drift. Seconds throughout."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(gt=0)]


class ContextsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Light contexts: day, low light, infrared. What is compared is compared within one.

    `hold`: seconds that frames must look otherwise before the context changes. `samples`: reference samples that a
    context needs before it is tested; with fewer it collects.
    """

    hold: Seconds = 120.0
    samples: Annotated[int, Meta(ge=16)] = 200


class CameraHealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many seconds a condition must hold before it is a fault of the camera (and be gone before it is none)."""

    frozen: Seconds = 10.0
    black: Seconds = 60.0
    blown: Seconds = 60.0
    blurred: Seconds = 600.0
    covered: Seconds = 600.0


class InputDriftConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Input drift: a verdict every `interval` seconds at most, from a window of `window` inputs spread over it."""

    window: Annotated[int, Meta(ge=20, le=2000)] = 200
    interval: Seconds = 86400.0


class StandBackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the shadow stands back though its budget would allow a sample; 0 switches a limit off.

    `temperature`: of the hottest thermal zone, °C. `load`: processes ready to run (1-minute load average) for each
    core. `latency_rise`: the product's time from capture to answer, against what is usual, as medians.
    """

    temperature: Annotated[float, Meta(ge=0)] = 95.0
    load: Annotated[float, Meta(ge=0)] = 3.0
    latency_rise: Annotated[float, Meta(ge=0)] = 1.5
