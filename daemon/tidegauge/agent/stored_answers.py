"""A golden tensor's accepted outputs, and how another answer differs from them. Pure.

Digests say that an answer has changed. The stored outputs say how: one flipped bit is another fault than a picture that
has gone black.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def changed(accepted: bytes, now: Sequence[bytes], dtypes: Sequence[str]) -> dict[str, float]:
    """`changed_elements` of `elements`, and `largest_change` of those that are finite before and after.

    `accepted`: the outputs' bytes in C order, one output after another; `now`: those of each output, of these NumPy
    element types. Empty where they are not of one size, since nothing can be told then.
    """
    if len(accepted) != sum(len(each) for each in now) or len(now) != len(dtypes):
        return {}
    count = total = 0
    largest, begun = 0.0, 0
    for data, dtype in zip(now, dtypes, strict=True):
        old, new = np.frombuffer(accepted[begun : begun + len(data)], dtype), np.frombuffer(data, dtype)
        begun += len(data)
        differs = np.flatnonzero(old.view(f"u{old.itemsize}") != new.view(f"u{new.itemsize}"))  # bits: NaN equals NaN
        total, count = total + old.size, count + differs.size
        with np.errstate(over="ignore", invalid="ignore"):
            distance = np.abs(new[differs].astype(np.float64) - old[differs].astype(np.float64))
        finite = distance[np.isfinite(distance)]
        largest = max(largest, float(finite.max())) if finite.size else largest
    return {"changed_elements": float(count), "elements": float(total), "largest_change": largest}


def sentence(found: dict[str, float]) -> str:
    """For an alarm's message; empty where nothing could be told."""
    if not found:
        return ""
    return (
        f": {found['changed_elements']:.0f} of {found['elements']:.0f} numbers differ from the accepted ones, "
        f"by {found['largest_change']:.3g} at most"
    )
