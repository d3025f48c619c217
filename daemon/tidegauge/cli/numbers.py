"""Types of options that are numbers."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """As click's, without `inf` and `nan`: the first is in every open range, the second passes every comparison."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number.", param, ctx)
        return found


class Numbers(click.ParamType[Any]):
    """Finite numbers with commas between."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        try:
            found = tuple(float(word) for word in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a number or numbers with commas between", param, ctx)
        if not all(math.isfinite(number) for number in found):
            self.fail(f"{value!r} holds a number that is not finite", param, ctx)
        return found
