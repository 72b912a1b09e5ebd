"""Run optimisers on recorded spaces, as often as a score needs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from envs.autotune_env.domain import NOWHERE
from envs.autotune_env.optimizers import Optimizer
from envs.autotune_env.oracle import replay
from envs.autotune_env.score import MARGIN, Run, Scale, Score, aggregate, scale, score
from envs.autotune_env.session import REFUSAL_SHARE, Session
from envs.autotune_env.space import Space

FEWEST = 5
"""Runs that are made however long they take."""


def begin(space: Space, noise: str, budget: float, rng: np.random.Generator) -> Session:
    """A new session on a record."""
    return Session(replay(space, noise), budget, refusal_seconds(space), rng)


def refusal_seconds(space: Space) -> float:
    """What a choice that is no configuration of the space costs."""
    return REFUSAL_SHARE * float(np.median(space.seconds))


def simulate(optimizer: Optimizer, space: Space, budget: float, rng: np.random.Generator) -> Run:
    """Run an optimiser until the budget, in virtual seconds, is spent or everything was tried."""
    session = begin(space, "mean", budget, rng)
    tuner = optimizer.start(space.domain, rng)
    clock: list[float] = []
    losses: list[float] = []
    while not session.over:
        row = tuner.ask()
        outcome = session.evaluate(row)
        if row != NOWHERE:
            clock.append(session.clock)
            losses.append(outcome.loss)
        tuner.tell(row, outcome, min(session.clock / budget, 1.0))
    return Run(np.array(clock), np.array(losses))


def repeat(optimizer: Optimizer, scale: Scale, repeats: int, seed: int = 0, limit: float = math.inf) -> list[Run]:
    """Runs of an optimiser on the space of a scale, each a little longer than its range.

    The run of a given number under a given seed is always the same, so that two optimisers compare pair by pair. No
    run begins once `limit` seconds of this process's time are spent, except for the first `FEWEST`.
    """
    seeds = np.random.SeedSequence(seed).spawn(repeats)
    budget = MARGIN * scale.end
    end = time.process_time() + limit
    runs: list[Run] = []
    while len(runs) < repeats and (len(runs) < FEWEST or time.process_time() < end):
        runs.append(simulate(optimizer, scale.space, budget, np.random.default_rng(seeds[len(runs)])))
    return runs


@dataclass(frozen=True, slots=True)
class Report:
    """Scores of one optimiser."""

    spaces: dict[str, Score]
    """By the name of the space."""
    total: Score
    """Over all spaces."""


def assess(
    optimizer: Optimizer,
    spaces: Sequence[Space],
    repeats: int,
    seed: int = 0,
    report: Callable[[int, str], None] = lambda done, line: None,
) -> Report:
    """Score an optimiser on several spaces; `report` hears how many are done."""
    groups = []
    scores: dict[str, Score] = {}
    for number, space in enumerate(spaces, 1):
        measure = scale(space)
        runs = repeat(optimizer, measure, repeats, seed)
        groups.append((measure, runs))
        scores[space.name] = score(measure, runs, seed)
        report(number, f"{space.name} {scores[space.name].mean:.3f}")
    return Report(scores, aggregate(groups, seed))
