"""Cheap models of what was tried, with which a search can screen candidates before it spends budget on one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from envs.autotune_env.domain import Domain

FAILED = math.inf
"""The loss of a configuration that failed, or is none."""


class Memory:
    """What was tried, in arrays that grow.

    A failed row counts as the worst that succeeded so far; the additive model leaves out those that failed first.
    """

    def __init__(self, domain: Domain) -> None:
        self._domain = domain
        self._count = 0
        self._tried = np.empty((len(domain.sizes), 64), np.uint16)
        """(D, room): by parameter, so that a distance is a sum of few long comparisons."""
        self._losses = np.empty(64)
        starts = np.cumsum((0, *domain.sizes[:-1]))
        self._places = (domain.configurations + starts).astype(np.int64)
        """(N, D): each value of each row as a number of its own."""
        self._totals, self._counts = (np.zeros(sum(domain.sizes)) for _ in range(2))
        self._worst = -math.inf

    def update(self, losses: Mapping[int, float]) -> None:
        """Add the rows that came since the last call; `losses` keeps the order in which rows were tried."""
        for row, loss in itertools.islice(losses.items(), self._count, None):
            if self._count == len(self._losses):
                self._tried = np.concatenate([self._tried, np.empty_like(self._tried)], axis=1)
                self._losses = np.concatenate([self._losses, np.empty_like(self._losses)])
            self._tried[:, self._count] = self._domain.configurations[row]
            self._losses[self._count] = loss
            self._count += 1
            if loss < FAILED:
                self._worst = max(self._worst, loss)
            if self._worst > -math.inf:
                self._totals[self._places[row]] += _level(min(loss, self._worst))
                self._counts[self._places[row]] += 1

    def nearest(self, rows: Sequence[int], k: int) -> list[float]:
        """The mean loss of the k tried rows from which fewest parameters differ; infinite while none succeeded."""
        if self._worst == -math.inf:
            return [FAILED] * len(rows)
        wanted = self._domain.configurations[list(rows)].T
        distance = np.zeros((len(rows), self._count), np.int16)
        for column, tried in zip(wanted, self._tried[:, : self._count], strict=True):
            distance += column[:, None] != tried
        k = min(k, self._count)
        places = np.argpartition(distance, k - 1, axis=1)[:, :k]
        means: list[float] = np.minimum(self._losses[places], self._worst).mean(axis=1).tolist()
        return means

    def additive(self, rows: Sequence[int]) -> list[float]:
        """The sum over parameters of how far the mean logarithm with that value lies from the mean of all.

        Values that were tried less are drawn to the mean, as by one more observation of it.
        """
        mean = self._totals.sum() / max(self._counts.sum(), 1)
        effects = (self._totals - self._counts * mean) / (self._counts + 1)
        sums: list[float] = effects[self._places[list(rows)]].sum(axis=1).tolist()
        return sums


def _level(loss: float) -> float:
    """The logarithm of a loss, less for less; a loss below zero is a rate turned round."""
    return math.log(loss) if loss > 0 else -math.log(-loss)
