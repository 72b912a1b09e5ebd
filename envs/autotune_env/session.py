"""A tuning session on a virtual clock: what was tried, what it cost, what is best.

The clock counts what the record says an evaluation costs, plus a declared constant for every decision; never wall
time, so that a seed repeats a session bit for bit. A configuration that was tried before is remembered and costs the
decision only; what is no configuration costs a little, so that a session of nothing else ends as well.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from envs.autotune_env.domain import NOWHERE
from envs.autotune_env.oracle import Oracle, Outcome
from envs.autotune_env.space import Status

DECISION_SECONDS: Final = 1e-3
"""What every decision costs, whatever it is."""

REFUSAL_SHARE: Final = 0.01
"""What a choice that is no configuration costs, as a share of the median evaluation."""


class Session:
    """One tuning session. It ends when the clock passes the budget, or when everything has been tried."""

    __slots__ = (
        "best",
        "budget",
        "clock",
        "clocks",
        "first_loss",
        "loss",
        "oracle",
        "refusal",
        "rng",
        "seen",
        "untried",
    )

    def __init__(self, oracle: Oracle, budget: float, refusal_seconds: float, rng: np.random.Generator) -> None:
        self.oracle, self.budget, self.rng = oracle, budget, rng
        self.refusal: Final = Outcome(Status.CONSTRAINTS, math.nan, refusal_seconds)
        self.clock = 0.0
        self.seen: dict[int, Outcome] = {}
        """What each row that was tried turned out to be."""
        self.clocks: list[float] = []
        """The clock when each of them was known."""
        self.untried = np.ones(len(oracle.domain), np.int8)
        """1 at each row that was not tried."""
        self.best = NOWHERE
        """The row with the least loss observed within the budget."""
        self.loss = math.inf
        """That loss."""
        self.first_loss = math.nan
        """The first loss observed."""

    def evaluate(self, row: int) -> Outcome:
        """Try a row and advance the clock; `NOWHERE` stands for a choice that is no configuration."""
        self.clock += DECISION_SECONDS
        if row < 0:
            self.clock += self.refusal.seconds
            return self.refusal
        known = self.seen.get(row)
        if known is not None:
            return known
        outcome = self.oracle.evaluate(row, self.rng)
        self.seen[row] = outcome
        self.untried[row] = 0
        self.clock += outcome.seconds
        self.clocks.append(self.clock)
        if outcome.loss < self.loss and self.clock <= self.budget:  # NaN is not less
            if self.best < 0:
                self.first_loss = outcome.loss
            self.best, self.loss = row, outcome.loss
        return outcome

    @property
    def exhausted(self) -> bool:
        """Whether every configuration was tried."""
        return len(self.seen) == len(self.oracle.domain)

    @property
    def over(self) -> bool:
        """Whether the session has ended."""
        return self.clock >= self.budget or self.exhausted
