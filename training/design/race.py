"""Racing: few runs for every program, more for those that may be among the best (Birattari et al., 2002).

All programs have the same seeds, run by run, so that they are compared pair by pair. A program goes on to the next
rung while its lower confidence bound is above that of the last survivor at the same rung.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.autotune_env.score import CONFIDENCE, RESAMPLES, Scale
from training.design.sandbox import STRIDE, Curves, Failed, Sandbox

RUNGS = (5, 25, 100)
"""Runs on each space by the end of each rung."""


@dataclass(frozen=True, slots=True)
class Rung:
    """The score of a program after some runs, over all spaces."""

    repeats: int
    mean: float
    low: float
    high: float
    """A bootstrap interval over runs."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a program did: its rungs, or why it failed."""

    rungs: tuple[Rung, ...] = ()
    spaces: Mapping[str, float] | None = None
    """The score on each space, after the last rung."""
    failure: str = ""
    seconds: float = 0.0
    """CPU time of all runs."""

    @property
    def fitness(self) -> float:
        """The lower bound after the last rung; minus infinity for a program that failed."""
        return self.rungs[-1].low if self.rungs and not self.failure else -np.inf


def race(
    sandbox: Sandbox, source: str, rivals: Sequence[Sequence[Rung]], seed: int = 0, rungs: Sequence[int] = RUNGS
) -> Result:
    """Run a program until it falls behind the last of the `rivals`, which are the rungs of the survivors."""
    curves: dict[str, list[Curves]] = {space.name: [] for space in sandbox.spaces}
    climbed: list[Rung] = []
    spaces: dict[str, float] = {}
    seconds, begin = 0.0, 0
    for number, end in enumerate(rungs):
        outcome = sandbox.run(source, begin, end, seed)
        if isinstance(outcome, Failed):
            return Result(tuple(climbed), None, outcome.reason, seconds)
        seconds += outcome.seconds
        for name, part in outcome.curves.items():
            curves[name].append(part)
        rung, spaces = estimate({name: np.concatenate(parts) for name, parts in curves.items()}, sandbox.scales, seed)
        climbed.append(rung)
        bounds = [rival[number].low for rival in rivals if len(rival) > number]
        if bounds and rung.low <= min(bounds):
            break
        begin = end
    return Result(tuple(climbed), spaces, "", seconds)


def estimate(curves: Mapping[str, Curves], scales: Mapping[str, Scale], seed: int = 0) -> tuple[Rung, dict[str, float]]:
    """The score over all spaces with its interval, and that on each space: the mean rank at each point, as a loss."""
    rng = np.random.default_rng(seed)
    totals = np.zeros(RESAMPLES)
    means = {}
    for name, ranks in curves.items():
        count = len(ranks)
        draws = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES) / count
        means[name] = float(standard(scales[name], ranks.mean(axis=0)[None])[0])
        totals += standard(scales[name], draws @ ranks)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(totals / len(means), (tail, 1 - tail))
    return Rung(count, float(np.mean(list(means.values()))), float(low), float(high)), means


def standard(one: Scale, ranks: np.ndarray) -> np.ndarray:
    """The scores (B,) of curves of mean ranks (B, K)."""
    places = np.clip(np.round(ranks), 0, len(one.ranked) - 1).astype(np.int64)
    curves = one.offsets[::STRIDE] + one.slopes[::STRIDE] * one.ranked[places]
    scores: np.ndarray = curves.mean(axis=1)
    return scores
