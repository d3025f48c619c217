"""The rules of `tidegauge lint`, in the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidegauge.preflight.lint import accuracy, activations, support
from tidegauge.preflight.lint.activations import Activation
from tidegauge.preflight.lint.graph import Graph, Remark
from tidegauge.profile import Profile


@dataclass(frozen=True)
class Rule:
    """`title`: what it looks at; `why`: what goes wrong otherwise. A rule without `find` is told by a neighbour's."""

    id: str
    title: str
    why: str
    find: Callable[[Graph], Iterator[Remark]] | None = None


RULES = (
    Rule(
        "dynamic-shape",
        "inputs and tensors without a fixed shape",
        "an input of unknown size can't be compiled",
        support.dynamic_shapes,
    ),
    Rule(
        "normalised-twice",
        "Div or Mul that scales the input by 255, beside a profile that scales too",
        "a picture 255 times too dark or too bright: black, or saturated",
    ),
    Rule(
        "operator",
        "operators that TIDL does not take",
        "the Arm cores compute them, and the model is split there",
        support.operators,
    ),
    Rule(
        "operator-form",
        "operators in a form that TIDL does not take: strided slices, odd scales, kernels, axes, modes, large pools",
        "the same",
    ),
    Rule(
        "sub-graphs",
        "into how many sub-graphs that splits the model (an estimate)",
        "each boundary copies tensors through the CPU",
        support.subgraphs,
    ),
    Rule(
        "element-wise-chain",
        f"{accuracy.LONG_CHAIN} or more element-wise operators in a row on tensors of {accuracy.LARGE}+ elements",
        "every step rounds again, with one scale for all its values: bands, and steps in dark areas",
        accuracy.chains,
    ),
    Rule(
        "squeeze-excite-pool",
        "global average pools inside squeeze-excite blocks",
        "the mean's error multiplies a whole tensor; known to lose accuracy with an SDK update",
        accuracy.global_pools,
    ),
    Rule("global-pool", "other global average pools", "the mean is small against the range it is computed in"),
    Rule("square", "Pow with exponent 2", "releases before 11 leave it to the CPU", accuracy.squares),
    Rule(
        "range",
        "division by a tensor, Exp, Reciprocal",
        "values of any size, of which 256 steps hold little",
        accuracy.unbounded,
    ),
    Rule(
        "activation-range",
        f"with `--input`: tensors in which an input's signal is less than {activations.LEAST_DB:g} dB over the noise "
        "of rounding to 8 bits",
        "one scale must hold the largest value of all frames, and leaves few steps for a dark one: black, or bands",
    ),
    Rule(
        "subnormal-weights",
        "float32 weights below the smallest normal number, counted",
        "dead channels; a slow reference on the CPU",
        accuracy.weights,
    ),
    Rule(
        "weight-range",
        f"channels whose largest weight is below 1/{2 * accuracy.STEPS} of the layer's largest",
        "one 8-bit scale for the whole tensor makes all their weights zero",
    ),
)


def remarks(graph: Graph, profile: Profile | None = None, measured: Sequence[Activation] = ()) -> tuple[Remark, ...]:
    """What TIDL will make of the model: what can't be compiled first. `profile`: with which pictures are prepared.
    `measured`: activations on recorded inputs."""
    found = [remark for rule in RULES if rule.find is not None for remark in rule.find(graph)]
    found += accuracy.normalisation(graph, profile)
    found += activations.too_wide(measured)
    order = {rule.id: number for number, rule in enumerate(RULES)}
    return tuple(sorted(found, key=lambda remark: (remark.status != "failed", order[remark.rule])))
