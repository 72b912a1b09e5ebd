"""Proposers rank the legal actions of a state. Any search runs with any of them.

A score adds up along a trace. It is a gain in predicted log speedup (cost model) or a log weight relative
to an even choice (heuristic, and policies); the higher the better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from envs.common.actions import Action
from envs.common.problem import Problem

S = TypeVar("S")


class Proposer(Protocol):
    """Scores actions; frozen, its randomness comes from `rng`."""

    def rank(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator
    ) -> Sequence[float]:
        """One score for each action. -inf: not worth a look."""
        ...


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every order of the actions is equally likely.

    The scores are standard Gumbel noise about zero, so that the best k are a sample without replacement.
    """

    def rank(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator
    ) -> Sequence[float]:
        noise: list[float] = (rng.gumbel(size=len(actions)) - np.euler_gamma).tolist()
        return noise


@dataclass(frozen=True, slots=True)
class Heuristic:
    """The domain's rules of thumb: the logarithm of the prior over an even choice."""

    def rank(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator
    ) -> Sequence[float]:
        logs: list[float] = _log_weights(problem, state, actions).tolist()
        return logs


@dataclass(frozen=True, slots=True)
class CostModel:
    """The cost model's prediction for the child, with the prior to decide between near equals.

    Many good steps gain nothing until a later one (a split before the inner loop is vectorised); a cost
    model can't tell these from the useless ones, and the prior can.
    """

    prior_weight: float = 0.02
    """Log speedup that one unit of log prior is worth."""
    shortlist: int = 48
    """At most so many actions are applied and estimated, best prior first."""
    glance: int = 12
    """So many at a time, as long as the last of them held a better one."""
    worth: float = 0.01
    """Predicted log speedup by which it has to be better."""
    variety: float = 0.3
    """Log prior that an action loses for each one of its strategy that comes before it."""

    def rank(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator
    ) -> Sequence[float]:
        logs = _log_weights(problem, state, actions)
        # Never a bonus: idle steps must not raise the score of a trace.
        logs = logs - max(logs, default=0.0)
        scores = [-math.inf] * len(actions)
        here = problem.estimate(state)
        best = -math.inf
        order = self._order(actions, logs)[: self.shortlist]
        for start in range(0, len(order), self.glance):
            glance = order[start : start + self.glance]
            for n in glance:
                gain = problem.estimate(problem.apply(state, actions[n])) - here
                scores[n] = gain + self.prior_weight * float(logs[n])
            better = max(scores[n] for n in glance)
            if better <= best + self.worth:
                break
            best = better
        return scores

    def _order(self, actions: Sequence[Action], logs: np.ndarray) -> list[int]:
        """Positions of the actions, the one to look at first in front."""
        met: Counter[str] = Counter()
        promise = logs.copy()
        for n in np.argsort(-logs, kind="stable"):
            promise[n] -= self.variety * met[actions[n].name]
            met[actions[n].name] += 1
        order: list[int] = np.argsort(-promise, kind="stable").tolist()
        return order


def _log_weights(problem: Problem[S], state: S, actions: Sequence[Action]) -> np.ndarray:
    weights = np.asarray(problem.prior(state, actions), dtype=float)
    return np.log(weights / weights.mean()) if len(actions) else weights
