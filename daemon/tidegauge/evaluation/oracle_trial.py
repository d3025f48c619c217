"""What predicted codes are worth: healthy layers on the twin, and the smallest faults that must be named alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tidegauge.compare import Comparison
from tidegauge.compare.oracle import TIERS
from tidegauge.evaluation.figures import Figure
from tidegauge.evaluation.trial import Bench, value_of
from tidegauge.virtualboard.faults import Fault, Kind, eligible

#: Layers of each 8-bit network that get each of the smallest faults.
_LAYERS = 4
#: The smallest faults: one channel one code off; 16 elements one code off.
SMALL: dict[str, tuple[Kind, float | None]] = {"one channel": ("one_channel", None), "16 elements": ("tiny", 16.0)}
#: A value nearer to the middle of two codes may be either.
_TIE = TIERS.index(0.002)
#: A layer needs so many elements to have 16 wrong ones among right ones.
_ROOM = 64


class Oracle(NamedTuple):
    """Healthy runs: their number, false culprits, codes off by more than one; shares of equal codes of the worst layer
    (8 and 16 bits), ties aside and not. `small`: for each of `SMALL`, how often that layer was named alone, of how
    many."""

    runs: int
    false: tuple[str, ...]
    more: int
    equal: dict[int, float]
    plain: dict[int, float]
    small: dict[str, tuple[int, int]]

    def with_runs(self, answers: Iterable[Comparison]) -> Oracle:
        """With more healthy runs, of which only false culprits count."""
        false, runs = list(self.false), self.runs
        for answer in answers:
            runs += 1
            false += [f"{c.layer}: {c.cause}, {c.detail}" for c in (*answer.culprits, *answer.recovered)]
        return self._replace(runs=runs, false=tuple(false))


def try_oracle(bench: Bench, bits: str, runs: Iterable[Comparison], random: np.random.Generator) -> Oracle:
    """From healthy runs of one network; on an 8-bit one the smallest faults as well."""
    found = Oracle(0, (), 0, {}, {}, {})
    for answer in runs:
        found = _counted(found.with_runs([answer]), answer)
    if bits == "8 bit":
        found = found._replace(small={name: _small(bench, name, random) for name in SMALL})
    return found


def _counted(found: Oracle, answer: Comparison) -> Oracle:
    more, equal, plain = found.more, dict(found.equal), dict(found.plain)
    for layer in answer.layers:
        if layer.codes_off_by_one is None or layer.codes_off_by_more is None or layer.codes_beyond is None:
            continue
        size = int(np.prod(layer.dims))
        more += round(layer.codes_off_by_more * size)
        wide = 16 if layer.dtype in ("int16", "uint16") else 8
        equal[wide] = min(equal.get(wide, 1.0), 1.0 - layer.codes_beyond[_TIE])
        plain[wide] = min(plain.get(wide, 1.0), 1.0 - layer.codes_off_by_one)
    return found._replace(more=more, equal=equal, plain=plain)


def _small(bench: Bench, name: str, random: np.random.Generator) -> tuple[int, int]:
    kind, amount = SMALL[name]
    sizes = {layer.name: layer for layer in bench.network.tensors()}
    able = [n for n in eligible(bench.network)[kind] if np.prod(sizes[n].shape) >= _ROOM]
    right = tried = 0
    for layer in random.permutation(able)[:_LAYERS]:
        strength = amount if amount is not None else float(random.integers(sizes[layer].shape[-3]))
        value = value_of(bench, int(random.integers(1000, 1 << 20)))
        answer = bench.judge(value, bench.run(value, [Fault(str(layer), kind, strength)]))
        tried += 1
        right += [c.layer for c in (*answer.culprits, *answer.recovered)] == [layer]
    return right, tried


def oracle_figures(results: Sequence[tuple[str, Oracle]]) -> list[Figure]:
    """Beside their goals, over all networks and widths."""
    group, found = "Code oracle on healthy layers", []
    more = sum(oracle.more for _, oracle in results)
    runs = sum(oracle.runs for _, oracle in results)
    found.append(Figure(group, "codes off by more than one", more, f"in {runs} runs", 0, "<="))
    for wide, goal in ((8, 99.9), (16, 99.0)):
        shares = [oracle.equal[wide] for _, oracle in results if wide in oracle.equal]
        plain = [oracle.plain[wide] for _, oracle in results if wide in oracle.plain]
        if shares:
            note = "worst layer of all runs; a value within 0.002 codes of the middle of two may be either"
            found.append(
                Figure(group, f"codes equal at {wide} bits, ties aside", 100 * min(shares), "%", goal, ">=", note)
            )
            words = f"codes equal at {wide} bits, ties counted"
            found.append(Figure(group, words, 100 * min(plain), "%", None, ">=", "worst layer of all runs"))
    for name, goal in (("one channel", 15), ("16 elements", 19)):
        counts = [oracle.small[name] for _, oracle in results if name in oracle.small]
        right, tried = sum(c[0] for c in counts), sum(c[1] for c in counts)
        if tried:
            words = f"{name} one code off, layer named alone"
            found.append(Figure(group, words, 20 * right / tried, "of 20", goal, ">=", f"{right} of {tried}"))
    false = sum(len(oracle.false) for _, oracle in results)
    found.append(Figure("Healthy inputs", "false culprits", false, f"in {runs} runs", 0, "<="))
    return found
