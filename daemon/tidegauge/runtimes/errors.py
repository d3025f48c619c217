"""What goes wrong in a runtime, as one type."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError


class RuntimeFault(TidegaugeError):
    """A runtime can't be loaded, can't open a model, refused an input or failed in a run."""
