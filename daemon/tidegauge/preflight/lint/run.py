"""All rules on one model."""

from __future__ import annotations

from tidegauge.preflight.lint import accuracy, support
from tidegauge.preflight.lint.graph import Graph, Remark
from tidegauge.profile import Profile


def remarks(graph: Graph, profile: Profile | None = None) -> tuple[Remark, ...]:
    """What TIDL will make of the model: what can't be compiled first. `profile`: with which pictures are prepared."""
    found = (
        *support.dynamic_shapes(graph),
        *accuracy.normalisation(graph, profile),
        *support.operators(graph),
        *support.subgraphs(graph),
        *accuracy.chains(graph),
        *accuracy.global_pools(graph),
        *accuracy.squares(graph),
        *accuracy.unbounded(graph),
        *accuracy.weights(graph),
    )
    return tuple(sorted(found, key=lambda remark: remark.status != "failed"))
