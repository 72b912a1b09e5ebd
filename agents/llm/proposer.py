"""A language model ranks the legal actions: any search runs with it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from agents.llm.adviser import Adviser
from agents.llm.formatter import Form, Formatter
from agents.proposers import Heuristic, Proposer
from envs.common.actions import Action
from envs.common.problem import Problem

S = TypeVar("S")

NAMED = 8
"""Actions that a model is asked to name."""


def _adviser() -> Adviser:
    return Adviser(formatter=Formatter(most=NAMED))


@dataclass(frozen=True, slots=True)
class LLMProposer:
    """A language model names the best few; the others follow as another proposer ranks them.

    The action named in place k weighs 1/k, summed over the answers. Its score is the log of its weight over the
    largest, in units of `worth`, and so never a bonus: to go on is for measurements to justify. An answer that can't
    be used changes nothing but who ranks.
    """

    adviser: Adviser = field(default_factory=_adviser)
    worth: float = 0.1
    """Log speedup that one unit of log weight is worth."""
    rest: Proposer | None = field(default_factory=Heuristic)
    """Ranks what the model does not name; None: that is not worth a look."""

    def __post_init__(self) -> None:
        if self.adviser.formatter.form is Form.REWRITE:
            raise ValueError("a proposer ranks actions: its model answers in the form menu or call, not rewrite")

    def rank(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator
    ) -> Sequence[float]:
        if len(actions) < 2:
            return [0.0] * len(actions)
        replies = self.adviser.ask(self.adviser.formatter.view(problem, state, actions), rng)
        weights: dict[Action, float] = {}
        for reply in replies:
            legal = [action for action in reply.actions if action in set(actions)]
            for place, action in enumerate(legal, 1):
                weights[action] = weights.get(action, 0.0) + 1 / place
        top, least = max(weights.values(), default=1.0), min(weights.values(), default=1.0)
        if weights and self.rest is None:
            scores = [-math.inf] * len(actions)
        else:
            scores = self._others(problem, state, actions, rng, least / top)
        for n, action in enumerate(actions):
            if action in weights:
                scores[n] = self.worth * math.log(weights[action] / top)
        return scores

    def _others(
        self, problem: Problem[S], state: S, actions: Sequence[Action], rng: np.random.Generator, least: float
    ) -> list[float]:
        """Below every action that was named, in the order of the other proposer."""
        ranks = np.asarray((self.rest or Heuristic()).rank(problem, state, actions, rng))
        places = np.empty(len(actions))
        places[np.argsort(-ranks, kind="stable")] = np.arange(1, len(actions) + 1)
        return [self.worth * math.log(least / 2 / place) for place in places.tolist()]
