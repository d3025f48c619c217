"""What can be wrong with a bundle."""

from __future__ import annotations

from tidegauge.errors import TidegaugeError


class BundleError(TidegaugeError):
    """A bundle is incomplete, damaged, too large, or not a bundle. Nothing of it has been used."""
