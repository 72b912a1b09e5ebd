"""Policies and search agents as optimisers: what was trained or written for an environment tunes here, and live.

A policy maps observation and mask to an action, as in `KernelTuner-v0`; a search agent solves a problem. Both run
wherever an optimiser runs: on recorded spaces (`leirgym score`), and inside Kernel Tuner (`kernel_tuner.as_strategy`).

    PolicyOptimizer(lambda observation, mask: model.predict(observation, action_masks=flat(mask))[0])
    AgentOptimizer(lambda problem, rng: make_agent("beam").solve(problem, Budget(1000), rng))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.autotune_env.choices import make_choice
from envs.autotune_env.domain import NOWHERE, Domain
from envs.autotune_env.observe import NONE, REPEATED, describe, fractions, observe
from envs.autotune_env.optimizers.inverted import Evaluate, inverted
from envs.autotune_env.optimizers.search import FAILED, PATIENCE, Search, Searcher, View
from envs.autotune_env.oracle import Outcome
from envs.autotune_env.problem import Configuration, TuningProblem
from envs.autotune_env.session import Session
from envs.autotune_env.space import COSTS, Space
from envs.common.evaluation import Check, Evaluation, Timing
from envs.common.evaluation import Status as Verdict

Act = Callable[[Any, Any], Any]
"""From an observation and the mask of the actions to an action."""


def unrecorded(domain: Domain) -> Space:
    """A space about which nothing is known; its values stand for none and are never looked at."""
    count = len(domain)
    costs = np.ones((count, len(COSTS)), np.float32)
    return Space("live/device", domain, np.zeros(count, np.int8), np.ones(count), costs)


@dataclass(frozen=True, slots=True)
class PolicyOptimizer:
    """A policy for `KernelTuner-v0` (`values`), -Flat (`number`) or -Local (`move`), with the observation it takes."""

    act: Act
    actions: str = "values"
    observation: str = "dict"

    def start(self, domain: Domain, rng: np.random.Generator) -> PolicyTuner:
        """Begin a run."""
        return PolicyTuner(self, domain, rng)


@dataclass(slots=True)
class _Told:
    """The oracle of a session whose outcomes come from elsewhere."""

    domain: Domain
    outcome: Outcome | None = None

    def evaluate(self, row: int, rng: np.random.Generator) -> Outcome:
        """What was told last."""
        assert self.outcome is not None
        return self.outcome


class PolicyTuner:
    """Shows the policy a session, as the environment does, and asks for what it chooses.

    Where it chooses what is known `PATIENCE` times in turn, an untried configuration is asked for.
    """

    def __init__(self, policy: PolicyOptimizer, domain: Domain, rng: np.random.Generator) -> None:
        self._policy = policy
        self._space = unrecorded(domain)
        self._choice = make_choice(policy.actions, domain)
        self._told = _Told(domain)
        self._session = Session(self._told, 1.0, 0.0, rng)
        self._current = int(rng.integers(len(domain))) if policy.actions == "move" else NOWHERE
        self._status: int = NONE
        self._outcome: Outcome | None = None

    def ask(self) -> int:
        session = self._session
        for _ in range(PATIENCE):
            mask = self._choice.mask(session, self._current)
            action = self._policy.act(self._observation(), mask)
            row = self._choice.read(action, session, self._current)
            if row not in session.seen:
                return row
            self._current, self._status, self._outcome = row, REPEATED, session.seen[row]
        untried = np.flatnonzero(session.untried)
        return int(session.rng.choice(untried)) if len(untried) else NOWHERE

    def tell(self, row: int, outcome: Outcome, spent: float) -> None:
        """Add to the session; its clock is the part of the budget that is spent."""
        self._told.outcome = outcome._replace(seconds=0.0)
        self._status, self._outcome = int(outcome.status), outcome
        if row != NOWHERE:
            self._current = row
            if row not in self._session.seen:
                self._session.clock = 0.0  # whatever is told came in time
                self._session.evaluate(row)
        self._session.clock = spent

    def _observation(self) -> Any:
        if self._policy.observation == "text":
            return describe(self._space, self._session, self._current, self._status, None)
        table = fractions(self._session.oracle.domain)
        return observe(table, self._session, self._current, self._status, self._outcome)


@dataclass(frozen=True, slots=True)
class AgentOptimizer(Searcher):
    """A search over problems, such as the agents in `agents/`: `solve(problem, rng)`, its result is not needed.

    The problem's root is the middle of the domain, and the first configuration that succeeds is its baseline.
    """

    solve: Callable[[TuningProblem, np.random.Generator], object]

    def search(self, view: View) -> Search:
        seed = view.rng.getrandbits(63)

        def run(evaluate: Evaluate) -> None:
            self.solve(_Asking(view.domain, evaluate), np.random.default_rng(seed))

        return inverted(run)


class _Asking(TuningProblem):
    """A tuning problem whose evaluations are asked for."""

    def __init__(self, domain: Domain, evaluate: Evaluate) -> None:
        super().__init__(unrecorded(domain))
        self._evaluate_row = evaluate
        self._first = math.nan

    def evaluate(self, states: Sequence[Configuration]) -> list[Evaluation]:
        return [self._asked(state) for state in states]

    def _asked(self, state: Configuration) -> Evaluation:
        loss = self._evaluate_row(state.row)
        if loss == FAILED:
            return Evaluation(self.key(state), Verdict.BUILD_FAILED, "it failed")
        if math.isnan(self._first):
            self._first = loss
        # A loss below zero is a rate turned round: its inverse is a time.
        seconds, baseline = (value if value > 0 else -1 / value for value in (loss, self._first))
        ratio = baseline / seconds
        timing = Timing((seconds,), (baseline,), "first configuration", ratio, ratio, ratio)
        check = Check("tuner/output", 0.0, 0.0, bitwise=False)
        return Evaluation(self.key(state), Verdict.OK, checks=(check,), timing=timing)
