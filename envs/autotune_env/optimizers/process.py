"""A Gaussian process over configurations, conditioned one observation at a time: what it expects of the untried ones.

The covariance of two configurations is a product over parameters, exp(-w (jump [differ] + (distance/reach)^power)),
where the distance counts values and is 1 between the first and the last. The weights w are fitted to the marginal
likelihood, so that parameters without effect come to nothing (Rasmussen and Williams, 2006, chapter 5). Targets are the
normal quantiles of the ranks of losses: neither unit nor outliers matter. Failed rows are equal, and last.

A standing set of candidates is kept with the part of the covariance that is explained, row by row of the inverse
factor: a further observation costs room x candidates products, and all candidates are judged at each step.
"""

from __future__ import annotations

import functools
import itertools
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.optimizers.models import FAILED

if TYPE_CHECKING:
    from envs.autotune_env.optimizers.search import View

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

GROWTH = 1.5
"""The weights are fitted anew when so many times as many rows were tried as at the last fit."""

FIRST = 6
"""Rows before the first fit."""

FITTED = 80
"""The most rows that weights are fitted to: the best half, and of the others as many at random."""

SPARE = 512
"""Room for neighbours of the best that join the candidates."""


class Process:
    """Expectations about the rows of a view.

    `room` is how many of the tried rows are remembered: when it is full, the better half stays. `candidates` is how
    many rows stand for election; smaller spaces stand as a whole, in larger ones the neighbours of the best join.
    """

    def __init__(
        self,
        view: View,
        reach: float = 1.0,
        jump: float = 0.25,
        power: float = 1.0,
        noise: float = 1e-3,
        fitted: bool = True,
        room: int = 200,
        candidates: int = 1500,
    ) -> None:
        self._view, self._noise, self._fits, self._room = view, noise, fitted, room
        self._columns = np.ascontiguousarray(view.domain.configurations.T)
        self._rng = np.random.default_rng(view.rng.getrandbits(63))
        self._whole = view.size <= candidates
        self._wanted = min(view.size, candidates)
        self._distances = [_distances(size, reach, jump, power) for size in view.domain.sizes]
        self.weights = np.ones(len(self._distances))
        """(D,): how much each parameter matters."""
        self._tables = self._distances
        self._heard = 0
        self._last = FIRST / GROWTH
        self._best = -1
        self._losses: list[float] = []
        self._costs: list[float] = []
        self._tried: list[int] = []
        self._untried = np.ones(view.size, np.bool_)
        self._rebuild()

    def spread(self, count: int, drawn: int = 32) -> list[int]:
        """Rows far from one another to begin with: each the furthest, by covariance, of some drawn at random."""
        chosen = [self._view.sample()]
        while len(chosen) < min(count, self._view.size):
            drawn_rows = np.array(self._view.samples(drawn))
            nearest = self._covariance(np.array(chosen), drawn_rows).max(axis=0)
            chosen.append(int(drawn_rows[int(nearest.argmin())]))
        return list(dict.fromkeys(chosen))

    def choose(self, caution: float = 0.0, thrift: float = 0.0) -> int:
        """The untried row with the greatest expected improvement (Jones et al., 1998); one at random where none stands.

        `caution` is a part of the spread that an improvement must exceed: more explores more. With `thrift` a row is
        worth its improvement over its expected seconds to that power.
        """
        self._update()
        if not self._tried:
            return self._view.fresh()
        targets = self._targets()
        rows, (means, *rest), spreads = self._expect(targets, thrift != 0)
        worth = np.log(spreads)
        worth += improvement((targets.min() - means) / spreads - caution)
        if rest:
            worth -= thrift * rest[0]
        worth[~self._untried[rows]] = -np.inf
        place = int(worth.argmax())
        return int(rows[place]) if worth[place] > -np.inf else self._view.fresh()

    def _expect(self, losses: Floats, costs: bool) -> tuple[Rows, Floats, Floats]:
        """The candidates, what is expected of them (targets; and logarithms of seconds with `costs`), the spreads."""
        count, size = len(self._tried), self._size
        targets = [losses]
        if costs:
            seconds = np.log(self._costs)
            targets.append(seconds - seconds.mean())
        explained = (np.array(targets) @ self._inverse[:count, :count].T).astype(np.float32)
        means = explained @ self._parts[:count, :size]
        return self._rows[:size], means.astype(np.float64), np.sqrt(np.maximum(self._variances[:size], 1e-8))

    def _targets(self) -> Floats:
        """The normal quantiles of the ranks; all that failed have the same, their mean."""
        targets = np.empty(len(self._losses))
        order = np.argsort(self._losses, kind="stable")
        targets[order] = _quantiles(len(self._losses))
        failed = np.array(self._losses) == FAILED
        if failed.any():
            targets[failed] = targets[failed].mean()
        return targets

    def _update(self) -> None:
        """Hear of the rows that were tried since the last time."""
        losses, seconds = self._view.losses, self._view.seconds
        for row, loss in itertools.islice(losses.items(), self._heard, None):
            self._heard += 1
            self._untried[row] = False
            if len(self._tried) == self._room:
                self._forget()
            self._condition(row)
            self._tried.append(row)
            self._losses.append(loss)
            self._costs.append(max(seconds[row], 1e-9))
            if len(self._tried) >= self._last * GROWTH:
                self._last = len(self._tried)
                self._fit()
                self._rebuild()
        if not self._whole and self._view.best not in (self._best, -1):
            self._best = self._view.best
            self._join(self._view.neighbours(self._best))

    def _forget(self) -> None:
        """Keep the better half."""
        kept = np.sort(np.argsort(self._losses, kind="stable")[: self._room // 2]).tolist()
        self._tried, self._losses, self._costs = (
            [old[place] for place in kept] for old in (self._tried, self._losses, self._costs)
        )
        self._last = min(self._last, len(kept))
        self._rebuild()

    def _condition(self, row: int) -> None:
        """One more row of the inverse factor, and of the parts of the candidates that are explained."""
        count, size = len(self._tried), self._size
        shared = self._inverse[:count, :count] @ self._row(row, self._columns[:, self._tried])
        scale = math.sqrt(max(float(1 + self._noise - shared @ shared), 1e-6))
        self._inverse[count, :count] = -(shared @ self._inverse[:count, :count]) / scale
        self._inverse[count, count] = 1 / scale
        part = self._row(row, self._places[:, :size]).astype(np.float32)
        part -= shared.astype(np.float32) @ self._parts[:count, :size]
        part /= np.float32(scale)
        self._parts[count, :size] = part
        self._variances[:size] -= part * part

    def _rebuild(self) -> None:
        """The factor and the candidates, made anew."""
        capacity = self._wanted if self._whole else self._wanted + SPARE
        self._rows = np.zeros(capacity, np.int64)
        self._places = np.zeros((len(self._columns), capacity), np.intp)
        self._inverse = np.zeros((self._room, self._room))
        self._parts = np.zeros((self._room, capacity), np.float32)
        self._variances = np.ones(capacity, np.float32)
        self._size = 0
        self._best = -1
        count = len(self._tried)
        if count:
            tried = np.array(self._tried)
            covariance = self._covariance(tried, tried) + self._noise * np.eye(count)
            self._inverse[:count, :count] = np.linalg.inv(np.linalg.cholesky(covariance))
        rows = np.arange(self._view.size)
        self._append(rows if self._whole else self._rng.choice(rows, self._wanted, replace=False, shuffle=False))

    def _join(self, rows: Rows) -> None:
        """Rows become candidates, as far as there is room."""
        new = rows[self._untried[rows]]
        new = new[~np.isin(new, self._rows[: self._size])][: len(self._rows) - self._size]
        self._append(new)

    def _append(self, rows: Rows) -> None:
        if not len(rows):
            return
        count, begin, end = len(self._tried), self._size, self._size + len(rows)
        self._rows[begin:end] = rows
        self._places[:, begin:end] = self._columns[:, rows]
        if count:
            shared = self._covariance(np.array(self._tried), rows).astype(np.float32)
            parts = self._inverse[:count, :count].astype(np.float32) @ shared
            self._parts[:count, begin:end] = parts
            self._variances[begin:end] = 1 - np.einsum("ij,ij->j", parts, parts)
        self._size = end

    def _row(self, row: int, others: npt.NDArray[Any]) -> Floats:
        """The covariance (B,) of one row with others, given by the places of their values (D, B)."""
        total = np.zeros(others.shape[1])
        for table, value, places in zip(self._tables, self._columns[:, row].tolist(), others, strict=True):
            total += table[value].take(places)
        np.negative(total, out=total)
        covariance: Floats = np.exp(total, out=total)
        return covariance

    def _covariance(self, first: Rows, second: Rows) -> Floats:
        """(A, B)."""
        total = np.zeros((len(first), len(second)))
        for table, column in zip(self._tables, self._columns, strict=True):
            total -= table[column[first]][:, column[second]]
        covariance: Floats = np.exp(total, out=total)
        return covariance

    def _fit(self) -> None:
        """Weights of greater posterior density, coordinate by coordinate; their logarithms are normal a priori."""
        if not self._fits:
            return
        targets = self._targets()
        chosen = np.argsort(targets)
        if len(chosen) > FITTED:
            half = FITTED // 2
            chosen = np.append(chosen[:half], self._rng.choice(chosen[half:], half, replace=False))
        rows, targets = np.array(self._tried)[chosen], targets[chosen]
        parts = [d[column[rows]][:, column[rows]] for d, column in zip(self._distances, self._columns, strict=True)]
        logs = np.log(self.weights)
        total = sum(weight * part for weight, part in zip(self.weights, parts, strict=True))
        least = self._surprise(np.asarray(total), targets, logs)
        for step in (0.8, -0.8, 0.4, -0.4):
            for place, part in enumerate(parts):
                while abs(logs[place] + step) < 4:
                    tried = logs.copy()
                    tried[place] += step
                    moved = total + (math.exp(tried[place]) - math.exp(logs[place])) * part
                    surprise = self._surprise(moved, targets, tried)
                    if surprise >= least:
                        break
                    logs, total, least = tried, moved, surprise
        self.weights = np.exp(logs)
        self._tables = [weight * distances for weight, distances in zip(self.weights, self._distances, strict=True)]

    def _surprise(self, total: Floats, targets: Floats, logs: Floats) -> float:
        """The negative logarithm of the posterior density of weights, up to a constant."""
        count = len(targets)
        # With the targets as one more row, the last row of the factor is what solving for them would give.
        bordered = np.empty((count + 1, count + 1))
        np.exp(-total, out=bordered[:count, :count])
        bordered[np.diag_indices(count)] += self._noise
        bordered[count, :count] = bordered[:count, count] = targets
        bordered[count, count] = 1 + targets @ targets / self._noise
        factor = np.linalg.cholesky(bordered)
        residual = factor[count, :count]
        return float(0.5 * residual @ residual + np.log(np.diag(factor)[:count]).sum() + 0.5 * logs @ logs)


def _distances(size: int, reach: float, jump: float, power: float) -> Floats:
    """(size, size): minus the logarithm of the covariance between values of one parameter."""
    apart = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) / max(size - 1, 1)
    distances: Floats = jump * (apart > 0) + (apart / reach) ** power
    return distances


@functools.lru_cache(maxsize=4096)
def _quantiles(count: int) -> Floats:
    """The normal quantiles of `count` ranks, ascending."""
    normal = NormalDist()
    return np.array([normal.inv_cdf((place + 0.5) / count) for place in range(count)])


@functools.cache
def _table() -> Floats:
    """The logarithm of the expected improvement of a standard normal at -12, -11.99, ..., 12."""
    values = []
    for z in np.linspace(-12, 12, 2401).tolist():
        density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
        values.append(math.log(z * 0.5 * math.erfc(-z / math.sqrt(2)) + density))
    return np.array(values)


def improvement(scores: Floats) -> Floats:
    """log E[max(z + N(0, 1), 0)] for each standard score z, to the nearest hundredth from -12 to 12."""
    places = np.rint(np.clip(scores, -12, 12) * 100).astype(np.intp) + 1200
    found: Floats = _table().take(places)
    return found
