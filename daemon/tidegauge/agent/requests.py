"""A device run that somebody waits for."""

from __future__ import annotations

import asyncio

import msgspec

from tidegauge.pipeline.messages import TensorDone


class TensorRequest(msgspec.Struct):
    """Of the raw tensor in `path`, to be copied into `sample_slot` where that is not negative."""

    path: str
    sample_slot: int
    answer: asyncio.Future[TensorDone]
