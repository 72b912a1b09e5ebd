"""Which configurations are near one another, looked up once for each domain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, moves

Rows = npt.NDArray[np.int64]

REPAIRS = 1 << 16
"""How many choices of values are remembered with the configurations nearest to them."""


class Neighbourhoods:
    """The neighbours of each row of a domain, found when they are first asked for and then remembered."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain
        self.indices: list[tuple[int, ...]] = list(map(tuple, domain.configurations.tolist()))
        """The values of each row, by position."""
        self.rows = {indices: row for row, indices in enumerate(self.indices)}
        """The row of each choice of values that is a configuration."""
        self._columns = np.ascontiguousarray(domain.configurations.T.astype(np.int32))
        """(D, N): by parameter, so that distances are sums of few long arrays."""
        self._moves = moves(domain)
        starts = np.repeat(np.cumsum((0, *domain.sizes[:-1])), domain.sizes)
        self._values = np.arange(sum(domain.sizes)) - starts
        self._positions = np.repeat(np.arange(len(domain.sizes)), domain.sizes)
        self._known: dict[tuple[int, str], Rows] = {}
        self._nearest: dict[tuple[int, ...], Rows] = {}

    def of(self, row: int, kind: str) -> Rows:
        """The neighbours of a row. Raises `ValueError` for an unknown kind."""
        found = self._known.get((row, kind))
        if found is None:
            if kind not in KINDS:
                raise ValueError(f"a neighbourhood is one of {', '.join(KINDS)}, not {kind!r}")
            found = self._known[row, kind] = KINDS[kind](self, row)
            found.setflags(write=False)
        return found

    def nearest(self, indices: tuple[int, ...]) -> Rows:
        """The rows at the least distance: the sum over parameters of how many values lie between."""
        found = self._nearest.get(indices)
        if found is None:
            if len(self._nearest) >= REPAIRS:
                self._nearest.clear()
            distance = self._distances(indices).sum(axis=0)
            found = self._nearest[indices] = np.flatnonzero(distance == distance.min())
        return found

    def _distances(self, indices: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """(D, N): how many values lie between these and those of each row."""
        distances: npt.NDArray[np.int32] = np.abs(self._columns - np.array(indices, np.int32)[:, None])
        return distances

    def _hamming(self, row: int) -> Rows:
        targets: Rows = self._moves[row].astype(np.int64)
        return targets[targets >= 0]

    def _step(self, row: int) -> Rows:
        targets: Rows = self._moves[row].astype(np.int64)
        near = np.abs(self._values - np.array(self.indices[row])[self._positions]) == 1
        found: Rows = targets[near & (targets >= 0)]
        return found

    def _adjacent(self, row: int) -> Rows:
        near = self._distances(self.indices[row]).max(axis=0) <= 1
        near[row] = False
        return np.flatnonzero(near)


KINDS: Mapping[str, Callable[[Neighbourhoods, int], Rows]] = {
    "hamming": Neighbourhoods._hamming,
    "step": Neighbourhoods._step,
    "adjacent": Neighbourhoods._adjacent,
}
"""`hamming`: one parameter differs. `step`: one differs, by one value. `adjacent`: any differ, each by at most one."""


@functools.lru_cache(maxsize=16)
def neighbourhoods(domain: Domain) -> Neighbourhoods:
    """The neighbourhoods of a domain, made once."""
    return Neighbourhoods(domain)
