"""What a step earns: the logarithm of the speedup it gained.

The value of a state is its log speedup over the root, bounded from below; a step earns the difference of
the values of the states it joins. So the return of an episode is the log of the speedup of its last
program over the root, going round in circles earns exactly nothing, and stopping at once earns 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from envs.common.evaluation import Evaluation
from envs.common.problem import Problem

S = TypeVar("S")

FAILURE_RETURN = -10.0
"""The return of every episode that ends in a failed build, a wrong result, a crash or a time-out."""

FLOOR = -9.0
"""The least value of a correct program: slower than root / 8,103 counts as that."""

REFUSAL_COST = 0.01
"""What a refused action costs."""

MAX_REFUSALS = 20
"""Refused actions in one episode; the last of them truncates it."""

# No correct program, however often its agent was refused, returns as little as a failing one.
assert FAILURE_RETURN < FLOOR - MAX_REFUSALS * REFUSAL_COST

PREDICTED = "predicted"
"""The status of a state that the cost model values: nothing was built or run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is known about a state: its status and, unless it failed, its log speedup over the baseline."""

    status: str
    log_speedup: float | None
    evaluation: Evaluation | None = None
    detail: str = ""
    """What failed, in one sentence."""

    def __post_init__(self) -> None:
        if self.log_speedup is not None and not math.isfinite(self.log_speedup):
            raise ValueError(f"a log speedup is finite, not {self.log_speedup}")

    @property
    def failed(self) -> bool:
        return self.log_speedup is None


@dataclass(frozen=True, slots=True)
class Measured(Generic[S]):
    """Values a state by building, verifying and timing it."""

    problem: Problem[S]

    def __call__(self, state: S) -> Verdict:
        [evaluation] = self.problem.evaluate([state])
        return Verdict(evaluation.status, evaluation.log_speedup, evaluation, evaluation.detail)


@dataclass(frozen=True, slots=True)
class Predicted(Generic[S]):
    """Values a state by the cost model; legal actions are trusted to keep its meaning."""

    problem: Problem[S]

    def __call__(self, state: S) -> Verdict:
        return Verdict(PREDICTED, self.problem.estimate(state))


Judge = Callable[[S], Verdict]

JUDGES: dict[str, Callable[[Problem[S]], Judge[S]]] = {"measured": Measured, "model": Predicted}
"""The `reward` argument of an environment."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The named parts of one step's reward; the reward is their sum."""

    speedup: float = 0.0
    """The log of the speedup gained."""
    refusal: float = 0.0
    """The cost of a refused action."""
    failure: float = 0.0
    """What brings the return to `FAILURE_RETURN`."""

    @property
    def total(self) -> float:
        return self.speedup + self.refusal + self.failure

    def as_dict(self) -> dict[str, float]:
        return {"speedup": self.speedup, "refusal": self.refusal, "failure": self.failure}


REFUSED = Terms(refusal=-REFUSAL_COST)


def value(verdict: Verdict, root: Verdict) -> float:
    """The value of a state that did not fail: its log speedup over the root, at least `FLOOR`."""
    assert verdict.log_speedup is not None and root.log_speedup is not None
    return max(verdict.log_speedup - root.log_speedup, FLOOR)


def earned(verdict: Verdict, before: Verdict, root: Verdict, collected: float) -> Terms:
    """What a step earns that goes from `before` to `verdict`, after `collected` in the episode so far."""
    if verdict.failed:
        return Terms(failure=FAILURE_RETURN - collected)
    return Terms(speedup=value(verdict, root) - value(before, root))
