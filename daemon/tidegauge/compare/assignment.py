"""The assignment problem: one column for each row, at the least total cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def best_assignment(cost: NDArray[Any]) -> NDArray[np.intp]:
    """The column of each row, for a square cost matrix. Shortest augmenting paths (Jonker and Volgenant, 1987)."""
    size = cost.shape[0]
    if cost.shape != (size, size):
        raise ValueError(f"a cost matrix of shape {cost.shape} is not square")
    # Column `size` is a virtual one, from which each augmenting path starts.
    row_of = np.full(size + 1, -1)
    u, v = np.zeros(size), np.zeros(size + 1)
    for row in range(size):
        row_of[size] = row
        column = size
        shortest = np.full(size, np.inf)
        previous = np.full(size, size)
        visited = np.zeros(size + 1, bool)
        while row_of[column] != -1:
            visited[column] = True
            current = row_of[column]
            reduced = cost[current] - u[current] - v[:size]
            better = (reduced < shortest) & ~visited[:size]
            shortest[better] = reduced[better]
            previous[better] = column
            open_costs = np.where(visited[:size], np.inf, shortest)
            following = int(np.argmin(open_costs))
            delta = open_costs[following]
            done = np.flatnonzero(visited)
            u[row_of[done]] += delta
            v[done] -= delta
            shortest[~visited[:size]] -= delta
            column = following
        while column != size:
            before = previous[column]
            row_of[column] = row_of[before]
            column = before
    result = np.empty(size, np.intp)
    result[row_of[:size]] = np.arange(size)
    return result
