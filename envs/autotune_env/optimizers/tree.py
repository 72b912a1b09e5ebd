"""Points of the unit cube as configurations: every point means one, whatever the restrictions.

A coordinate chooses among the values that are allowed after those of the parameters before it, each with an equal
share, as in the chains of trees of ATF (Rasch et al., TACO 2021).
"""

from __future__ import annotations

import functools
import math

import numpy as np

from envs.autotune_env.domain import Domain

Coordinates = tuple[float, ...]


class Tree:
    """The configurations of a domain by their prefixes."""

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._edges: dict[tuple[int, int], list[int]] = {}

    def row(self, point: Coordinates) -> int:
        """The row that a point of (0, 1]^D means."""
        begin, end = 0, len(self._domain)
        for position, coordinate in enumerate(point):
            edges = self._split(position, begin, end)
            child = min(max(math.ceil(coordinate * (len(edges) - 1)) - 1, 0), len(edges) - 2)
            begin, end = edges[child], edges[child + 1]
        return begin

    def _split(self, position: int, begin: int, end: int) -> list[int]:
        """Where, among rows with a common prefix, each value of the next parameter begins; then the end."""
        edges = self._edges.get((position, begin))
        if edges is None:
            steps = np.flatnonzero(np.diff(self._domain.configurations[begin:end, position])) + begin + 1
            edges = self._edges[position, begin] = [begin, *steps.tolist(), end]
        return edges


@functools.lru_cache(maxsize=16)
def tree(domain: Domain) -> Tree:
    """The tree of a domain, made once."""
    return Tree(domain)
