"""Optimisers side by side on spaces, run by run with equal seeds: scores, and by how much the first leads.

    python -m training.design.comparison FOLDER REPEATS evolved,genetic-tuned,... gemm/H200 hotspot/H200 ...

A score is that of `race.estimate`: the mean rank at each point, as a loss. Resamples draw the same runs for all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.autotune_env import suite
from envs.autotune_env.optimizers import Optimizer, make_optimizer
from envs.autotune_env.score import CONFIDENCE, RESAMPLES, Scale, scale
from envs.autotune_env.space import Space
from envs.common.console import columns
from training.design.race import Rung, standard
from training.design.sandbox import Curves, runs

SEED = 1
"""None that a study trains with by default."""

ALL = "all"
"""What stands for the mean over the spaces."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Scores, and the lead of the first optimiser over the best of the others."""

    scores: dict[str, dict[str, Rung]]
    """By optimiser, then by space; `all` is the mean over spaces."""
    gain: float
    """By what share the first is above the best of the others, over all spaces."""
    low: float
    high: float
    """A bootstrap interval of the gain, over runs."""


def compare(optimizers: Mapping[str, Optimizer], spaces: Sequence[Space], repeats: int, seed: int = SEED) -> Comparison:
    """Run each on each space; the first is measured against the others."""
    scales = [scale(space) for space in spaces]
    curves = {who: [runs(one, measure, 0, repeats, seed) for measure in scales] for who, one in optimizers.items()}
    return judge(curves, scales, seed)


def judge(curves: Mapping[str, Sequence[Curves]], scales: Sequence[Scale], seed: int = SEED) -> Comparison:
    """Compare curves of runs: one array for each space, of as many runs for each optimiser."""
    rng = np.random.default_rng(seed)
    drawn = []
    for ranks in next(iter(curves.values())):
        drawn.append(rng.multinomial(len(ranks), np.full(len(ranks), 1 / len(ranks)), RESAMPLES) / len(ranks))
    means, samples = {}, {}
    for who, parts in curves.items():
        means[who] = np.array(
            [standard(s, ranks.mean(axis=0)[None])[0] for s, ranks in zip(scales, parts, strict=True)]
        )
        samples[who] = np.array([standard(s, d @ ranks) for s, d, ranks in zip(scales, drawn, parts, strict=True)])
    names = [one.space.name for one in scales]
    repeats = min(len(draws[0]) for draws in drawn)
    scores = {
        who: {
            **{name: _rung(repeats, means[who][place], samples[who][place]) for place, name in enumerate(names)},
            ALL: _rung(repeats, means[who].mean(), samples[who].mean(axis=0)),
        }
        for who in curves
    }
    first, *others = curves
    best = max(others, key=lambda who: scores[who][ALL].mean)
    leads = _gain(samples[first].mean(axis=0), samples[best].mean(axis=0))
    return Comparison(scores, float(_gain(means[first].mean(), means[best].mean())), *_interval(leads))


def table(found: Comparison) -> str:
    """The scores as text, a line for each space."""
    who, *_ = found.scores
    rows = [("space", *found.scores)]
    for name in found.scores[who]:
        parts = [scores[name] for scores in found.scores.values()]
        rows.append((name, *(f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]" for one in parts)))
    lead = f"{who} above the best of the others by {found.gain:.1%} [{found.low:.1%}, {found.high:.1%}]"
    return f"{columns(rows)}\n{lead}"


def _gain(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    gains: np.ndarray = (mine - theirs) / np.abs(theirs)
    return gains


def _interval(samples: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, (tail, 1 - tail))
    return float(low), float(high)


def _rung(repeats: int, mean: float, samples: np.ndarray) -> Rung:
    return Rung(repeats, float(mean), *_interval(samples))


def main(folder: str, repeats: str, optimizers: str, *names: str) -> None:
    """Compare and print."""
    spaces = suite.resolve(names, None, Path(folder), samples=False)
    print(table(compare({name: make_optimizer(name) for name in optimizers.split(",")}, spaces, int(repeats))))


if __name__ == "__main__":
    main(*sys.argv[1:])
