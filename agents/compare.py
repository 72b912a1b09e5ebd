"""Agents side by side: the same workloads, seeds and number of evaluations, and figures that can be compared.

A run is one agent on one workload with one seed. Its winner is timed again, in more pairs than a search affords:
the best of many noisy measurements flatters itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from agents.base import Budget, Evaluated, Event, SearchResult, make_agent, own_proposer
from envs.common.actions import Action
from envs.common.evaluation import Evaluation
from envs.common.problem import Problem

S = TypeVar("S")

THRESHOLDS = (1.0, 1.5, 2.0)
"""fast_p counts the runs whose speedup exceeds p (Ouyang et al., "KernelBench", 2025)."""


class Watched:
    """A problem that adds up how long its evaluations take; otherwise the problem itself."""

    def __init__(self, problem: Problem[Any]) -> None:
        self._problem = problem
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def evaluate(self, states: Sequence[Any]) -> list[Evaluation]:
        """Evaluate, by the clock."""
        started = time.perf_counter()
        try:
            return self._problem.evaluate(states)
        finally:
            self.seconds += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Run:
    """What one agent made of one workload with one seed."""

    workload: str
    agent: str
    seed: int
    evaluations: int
    verified: int
    """Evaluations that ended with a verified program."""
    curve: tuple[float | None, ...]
    """The best speedup over the baseline after each evaluation, as the search measured it."""
    actions: tuple[str, ...]
    """From the root to the winner."""
    before: str
    after: str
    """The programs."""
    seconds: float
    """Of the search."""
    evaluating: float
    """Seconds of these spent on evaluations."""
    speedups: dict[str, float] = field(default_factory=dict)
    """Of the winner, timed again, by what it is compared with."""

    @property
    def strategies(self) -> int:
        """Distinct strategies on the way to the winner."""
        return len({action.partition("(")[0] for action in self.actions})

    @property
    def area(self) -> float:
        """The mean log of the best speedup so far, over evaluations: how high and how early."""
        return float(np.mean([math.log(best) if best else 0.0 for best in self.curve])) if self.curve else 0.0

    @property
    def overhead(self) -> float:
        """See `overhead`."""
        return overhead(self.seconds, self.evaluating)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Run:
        """Read what `Comparison.to_json` wrote. Raises TypeError or KeyError for anything else."""
        return cls(**{**data, "curve": tuple(data["curve"]), "actions": tuple(data["actions"])})


def overhead(seconds: float, evaluating: float) -> float:
    """Wall time of a search that its evaluations do not fill, over the wall time of these."""
    return (seconds - evaluating) / evaluating if evaluating else 0.0


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be run."""

    workload: str
    agent: str
    """Its name; with a proposer that is not its own, as `beam/uniform`."""
    seed: int
    budget: int


def run(
    task: Task,
    problem: Problem[S],
    final: Callable[[S], dict[str, float]],
    parameters: dict[str, Any] | None = None,
    listen: Callable[[Event], None] = lambda event: None,
) -> Run:
    """Take one run; `final` times the winner's state again."""
    verified = 0

    def count(event: Event) -> None:
        nonlocal verified
        if isinstance(event, Evaluated):
            verified += event.evaluation.status.verified
        listen(event)

    watched = Watched(problem)
    agent = make_agent(named(task.agent)[0], **(parameters or {}))
    result = agent.solve(watched, Budget(task.budget), np.random.default_rng(task.seed), count)
    winner = _follow(problem, result.actions)
    return Run(
        task.workload,
        task.agent,
        task.seed,
        result.counts.evaluations,
        verified,
        result.curve,
        tuple(map(str, result.actions)),
        problem.show(problem.root),
        problem.show(winner),
        result.counts.seconds,
        watched.seconds,
        final(winner) if _found(result) else {},
    )


def named(agent: str) -> tuple[str, str | None]:
    """An agent's name, and that of its proposer if it is not the agent's own."""
    name, _, proposer = agent.partition("/")
    return name, proposer or None


def _found(result: SearchResult) -> bool:
    return result.evaluation is not None


def _follow(problem: Problem[S], actions: Iterable[Action]) -> S:
    state = problem.root
    for action in actions:
        state = problem.apply(state, action)
    return state


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs, and the figures that sum them up."""

    runs: tuple[Run, ...]

    @property
    def agents(self) -> tuple[str, ...]:
        """In the order in which they ran."""
        return tuple(dict.fromkeys(run.agent for run in self.runs))

    @property
    def workloads(self) -> tuple[str, ...]:
        """In the order in which they were solved."""
        return tuple(dict.fromkeys(run.workload for run in self.runs))

    @property
    def references(self) -> tuple[str, ...]:
        """What speedups are over, as far as anything was compared with it."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.speedups))

    def of(self, agent: str, workload: str | None = None) -> tuple[Run, ...]:
        """The runs of an agent, on one workload or on all."""
        return tuple(run for run in self.runs if run.agent == agent and workload in (None, run.workload))

    def summary(self, agent: str) -> dict[str, float]:
        """The figures of an agent: speedups (geometric mean, mean, largest) by reference, and how it searched."""
        runs = self.of(agent)
        figures: dict[str, float] = {}
        for reference in self.references:
            found = [run.speedups[reference] for run in runs if reference in run.speedups]
            if found:
                figures[f"geomean over {reference}"] = geomean(found)
                figures[f"mean over {reference}"] = float(np.mean(found))
                figures[f"max over {reference}"] = max(found)
                for p in THRESHOLDS:
                    figures[f"fast_{p:g} over {reference}"] = sum(speedup > p for speedup in found) / len(runs)
        return figures | {
            "verified": sum(run.verified for run in runs) / max(1, sum(run.evaluations for run in runs)),
            "area": float(np.mean([run.area for run in runs])),
            "strategies": float(np.mean([run.strategies for run in runs])),
            "overhead": overhead(sum(run.seconds for run in runs), sum(run.evaluating for run in runs)),
            "seconds": float(np.mean([run.seconds for run in runs])),
        }

    def curve(self, agent: str, workload: str | None = None) -> tuple[float, ...]:
        """The geometric mean of the best speedup so far over runs, by evaluation; a run that ended stays at its end."""
        runs = self.of(agent, workload)
        length = max((len(run.curve) for run in runs), default=0)
        logs = np.zeros((len(runs), length))
        for row, run in enumerate(runs):
            known = [math.log(best) if best else 0.0 for best in run.curve] or [0.0]
            logs[row] = known + known[-1:] * (length - len(known))
        return tuple(np.exp(logs.mean(axis=0)).tolist()) if runs else ()

    def reached(self, agent: str, speedup: float) -> int | None:
        """Evaluations after which the geometric mean over all runs is at least `speedup`; None if it never is."""
        # The mean of equal logarithms is equal to them up to rounding only.
        return next((n for n, best in enumerate(self.curve(agent), 1) if best >= speedup * (1 - 1e-9)), None)

    def proposers(self, standard: str = "uniform") -> dict[str, dict[str, int | None]]:
        """Evaluations of each proposer to reach the geometric mean that `standard` ends at, by agent."""
        found: dict[str, dict[str, int | None]] = {}
        for agent in self.agents:
            name, proposer = named(agent)
            goal = self.curve(f"{name}/{standard}")
            if goal:
                found.setdefault(name, {})[proposer or own_proposer(name) or ""] = self.reached(agent, goal[-1])
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {
            "summary": {agent: self.summary(agent) for agent in self.agents},
            "evaluations to the geomean of uniform": self.proposers(),
            "runs": [asdict(run) for run in self.runs],
        }


def geomean(values: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
