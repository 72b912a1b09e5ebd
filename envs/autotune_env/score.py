"""How good an optimiser is: the performance score of the auto-tuning methodology (Willemsen et al., FGCS 2024).

A run is judged over a range of seconds. It ends where random search without replacement is expected to have come
95 % of the way from the median configuration to the optimum, and begins where that is 1 %. At 1,000 points in the
range, the best value found so far is compared with what random search is expected to have found:

    standardised = (found - baseline) / (optimum - baseline)

0 is random search, 1 the optimum, less than 0 worse than random search. The score is the mean over the points. Many
runs are combined by *rank*: the best so far as a place in the sorted record, pooled over the runs, made monotone by
isotonic regression, and turned back into a value. The published package bags that regression (`bags` does so too);
by default ours is the regression itself, so that a score has no randomness of its own.

Random search itself scores a little less than 0 where the range is a few dozen evaluations: a run has what it has
finished, while the baseline rounds the evaluations of a moment to the nearest whole number and rises between them.
The published package gives the same.

Everything is stated in losses: less is better, whatever the objective.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from envs.autotune_env.curves import isotonic_curve, monotone_cubic
from envs.autotune_env.domain import SpaceError
from envs.autotune_env.space import Space

Floats = npt.NDArray[np.float64]

BEGIN = 0.01
END = 0.95
"""How far random search has come, from the median to the optimum, where the range begins and where it ends."""

POINTS = 1000
"""Points of the range."""

MARGIN = 1.1
"""Runs last this much longer than the range, so that the regression has points on both sides of its end."""

RESAMPLES = 400
CONFIDENCE = 0.95
"""Bootstrap resamples behind the interval of a score, and what it covers."""


@dataclass(frozen=True, slots=True, eq=False)
class Scale:
    """What runs on a space are measured against. Equal only to itself; arrays are read-only."""

    space: Space
    evaluations: tuple[int, int]
    """Evaluations that random search needs to the begin and to the end of the range."""
    times: Floats
    """(K,): the points, in seconds from the start of a run."""
    baseline: Floats
    """(K,): the loss that random search is expected to have reached."""
    ranked: Floats
    """The losses of all measured configurations, ascending; the first is the optimum."""
    offsets: Floats = field(init=False)
    slopes: Floats = field(init=False)
    """(K,) each: the standardised curve is offset + slope x loss."""

    def __post_init__(self) -> None:
        reach = self.ranked[0] - self.baseline
        if np.any(reach >= 0):
            first = float(self.times[int(np.argmax(reach >= 0))])
            raise SpaceError(
                f"{self.space.name}: random search is expected to reach the optimum after {first:.4g} s, "
                f"so that a range to {self.times[-1]:.4g} s has no scale"
            )
        object.__setattr__(self, "slopes", 1 / reach)
        object.__setattr__(self, "offsets", -self.baseline / reach)
        for array in (self.times, self.baseline, self.ranked, self.offsets, self.slopes):
            array.setflags(write=False)

    @property
    def begin(self) -> float:
        """Seconds at the begin of the range."""
        return float(self.times[0])

    @property
    def end(self) -> float:
        """Seconds at the end of the range: the default budget."""
        return float(self.times[-1])

    def rank(self, losses: Floats) -> Floats:
        """The places of losses in the sorted record: 0 is the optimum."""
        return np.searchsorted(self.ranked, losses).astype(np.float64)

    def standardise(self, losses: Floats) -> Floats:
        """A curve of losses (..., K) on the scale where random search is 0 and the optimum 1."""
        return self.offsets + self.slopes * losses


@functools.lru_cache(maxsize=64)
def scale(space: Space, budget: float | None = None) -> Scale:
    """The scale of a space; with `budget`, the range ends after so many seconds instead of at the cut-off.

    Raises `SpaceError` where the record leaves nothing to find, or the budget ends before the range begins.
    """
    ranked = np.sort(space.losses[space.correct])
    evaluations = _range(ranked, space.name)
    typical = float(np.median(space.seconds))
    begin, end = evaluations[0] * typical, evaluations[1] * typical if budget is None else budget
    if not begin < end < math.inf:
        raise SpaceError(f"{space.name}: a budget of {end:.4g} s ends before the range begins, at {begin:.4g} s")
    times = np.linspace(begin, end, POINTS)
    return Scale(space, evaluations, times, random_search(ranked, times / seconds_per_evaluation(space)), ranked)


def cutoff(ranked: Floats, fraction: float) -> int:
    """Evaluations after which random search is expected to have come `fraction` of the way from median to optimum.

    `ranked` are the losses, ascending. Raises `SpaceError` where every configuration is as good as the best.
    """
    count, best = len(ranked), ranked[0]
    target = best + (float(np.median(ranked)) - best) * (1 - fraction)
    # Counted from the worst; the first one that is at least as good as the target.
    place = count - int(np.searchsorted(ranked, target, side="right"))
    if fraction != 1 and ranked[count - 1 - place] == best:
        if place == 0:
            raise SpaceError("every configuration is as good as the best: there is nothing to find")
        place -= 1
    return math.ceil(place / (count + 1 - place))


def _range(ranked: Floats, name: str) -> tuple[int, int]:
    """The cut-offs, kept two evaluations apart where that is possible."""
    try:
        begin, end = cutoff(ranked, BEGIN), cutoff(ranked, END)
        last = cutoff(ranked, 1.0)
    except SpaceError as error:
        raise SpaceError(f"{name}: {error}") from None
    return (begin, end) if end - begin >= 2 else (max(begin - 1, 0), min(last, end + 1))


def seconds_per_evaluation(space: Space) -> float:
    """What an evaluation of random search costs on average: a measured one, and its share of failed ones."""
    failed = ~space.correct
    mean = float(space.seconds[~failed].mean())
    return mean + float(failed.mean()) * float(space.seconds[failed].mean()) if failed.any() else mean


def random_search(ranked: Floats, evaluations: Floats) -> Floats:
    """The loss that random search without replacement is expected to have reached after so many evaluations.

    The best of M draws out of N stands, on average, at place M (N+1)/(M+1) counted from the worst. Evaluations are
    rounded to whole ones, and the steps are smoothed by monotone interpolation.
    """
    count = len(ranked)
    draws = np.maximum(np.round(evaluations), 1)
    places = np.minimum(np.round(draws * (count + 1) / (draws + 1)), count - 1).astype(np.int64)
    losses: Floats = ranked[count - 1 - places]
    first = np.append(True, np.diff(draws) > 0)
    if len(draws) <= 2 or first.sum() < 2:
        return losses
    return monotone_cubic(draws[first], losses[first], np.linspace(draws[0], draws[-1], len(draws)))


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One run of an optimiser on a space, evaluation by evaluation."""

    seconds: Floats
    """(n,): the clock when each evaluation was done; never falls."""
    losses: Floats
    """(n,): what each found; NaN where it failed."""

    def __post_init__(self) -> None:
        if self.seconds.shape != self.losses.shape or self.seconds.ndim != 1:
            raise ValueError(f"a run has one loss a second: {self.seconds.shape} seconds, {self.losses.shape} losses")
        if np.any(np.diff(self.seconds) < 0) or not np.all(np.isfinite(self.seconds)):
            raise ValueError("the clock of a run never falls")

    @property
    def best(self) -> Floats:
        """(n,): the best so far; NaN while there is none."""
        return np.fmin.accumulate(self.losses)


def step_curve(scale: Scale, run: Run) -> Floats:
    """The best so far at the points of the scale: what was finished by then.

    Before its first success a run is given what that found, as isotonic regression does; without any success it has
    the worst of the space.
    """
    best = run.best
    found = ~np.isnan(best)
    if not found.any():
        return np.full(len(scale.times), scale.ranked[-1])
    seconds, best = run.seconds[found], best[found]
    done = np.searchsorted(seconds, scale.times, side="right")
    return best[np.maximum(done - 1, 0)]


def run_score(scale: Scale, run: Run) -> float:
    """The score of a single run: the mean of its standardised curve; the return of an episode."""
    return float(scale.standardise(step_curve(scale, run)).mean())


def combined_curve(scale: Scale, runs: Sequence[Run], bags: np.random.Generator | None = None) -> Floats:
    """The curve (K,) of many runs: their best so far by rank, pooled and made monotone.

    With `bags`, the regression is the mean of as many as there are runs, each on a random part of the points, as
    in the published package.
    """
    margin = 0.1 + 0.25 / max(1, *(len(run.seconds) for run in runs))
    low, high = scale.begin * (1 - margin), scale.end * (1 + margin)
    parts = [_points(scale, run, low, high) for run in runs]
    seconds, ranks = (np.concatenate(part) for part in zip(*parts, strict=True))
    fit = functools.partial(isotonic_curve, at=scale.times, increasing=False)
    fitted = fit(seconds, ranks) if bags is None else _bagged(seconds, ranks, len(runs), fit, bags)
    curve = scale.ranked[np.clip(np.round(fitted), 0, len(scale.ranked) - 1).astype(np.int64)]
    return _held(scale, curve, np.array([run.seconds[-1] if len(run.seconds) else 0.0 for run in runs]))


def _points(scale: Scale, run: Run, low: float, high: float) -> tuple[Floats, Floats]:
    """What a run brings to the regression: its best so far, by rank, at its evaluations from `low` to `high`.

    The published package refuses a run without two successes there. Here, one that was over earlier keeps what it
    had, and one that never found anything has the worst of the space.
    """
    seconds, best = run.seconds, run.best
    within = (low <= seconds) & (seconds <= high)
    found = within & ~np.isnan(best)
    if found.any():
        return seconds[found], scale.rank(best[found])
    early = best[(seconds < low) & ~np.isnan(best)]
    if len(early):
        return scale.times[:1], scale.rank(early[-1:])
    worst = np.full(max(within.sum(), 1), len(scale.ranked) - 1.0)
    return (seconds[within] if within.any() else scale.times[:1]), worst


def _bagged(
    seconds: Floats, ranks: Floats, runs: int, fit: Callable[[Floats, Floats], Floats], rng: np.random.Generator
) -> Floats:
    """The mean of regressions on random parts, each one point in the root of the number of runs, with replacement."""
    bags = max(runs, 3)
    size = max(1, int(len(seconds) / math.sqrt(bags)))
    draws = rng.integers(len(seconds), size=(bags, size))
    mean: Floats = np.mean([fit(seconds[draw], ranks[draw]) for draw in draws], axis=0)
    return mean


def _held(scale: Scale, curve: Floats, ends: Floats) -> Floats:
    """The curve, constant from where half of the runs are over: fewer say nothing about the optimiser."""
    later = np.sort(ends[ends > np.median(ends)])
    stop = float(later[0]) if len(later) else scale.end
    beyond = np.flatnonzero(scale.times > stop)
    if len(beyond):
        curve[beyond[0] :] = curve[beyond[0]]
    return curve


def standardised_curve(scale: Scale, runs: Sequence[Run], bags: np.random.Generator | None = None) -> Floats:
    """The combined curve (K,) of many runs on the scale where random search is 0 and the optimum 1."""
    return scale.standardise(combined_curve(scale, runs, bags))


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an optimiser on one space, or over several."""

    mean: float
    low: float
    high: float
    """A bootstrap interval over the runs."""
    spread: float
    """Standard deviation over the points of the curve: what the published package calls the error."""
    repeats: int
    """Runs on each space."""


def score(scale: Scale, runs: Sequence[Run], seed: int = 0) -> Score:
    """Score the runs of an optimiser on one space, with a bootstrap interval over the runs."""
    return aggregate([(scale, runs)], seed)


def aggregate(groups: Sequence[tuple[Scale, Sequence[Run]]], seed: int = 0) -> Score:
    """Score over several spaces: the mean over spaces at each point, then over the points.

    The interval resamples the runs of each space. One degenerate space can rule the mean: state the scores of the
    single spaces beside it.
    """
    if not groups or not all(runs for _, runs in groups):
        raise ValueError("a score needs a space, and a run on each space")
    curve = np.mean([standardised_curve(scale, runs) for scale, runs in groups], axis=0)
    low, high = interval(np.mean([resampled(scale, runs, seed) for scale, runs in groups], axis=0))
    return Score(float(curve.mean()), low, high, float(curve.std()), min(len(runs) for _, runs in groups))


def resampled(scale: Scale, runs: Sequence[Run], seed: int = 0) -> Floats:
    """Scores (RESAMPLES,) of bootstrap resamples of the runs, on rank curves made once for each run.

    A mean of rank curves stands for the regression, which differs from it a little: the resamples are moved by what it
    differs on all runs. Those of different spaces are independent, so that element by element they are resamples of
    any mean over spaces.
    """
    rng = np.random.default_rng((seed, zlib.crc32(scale.space.name.encode())))
    ranks = np.stack([scale.rank(step_curve(scale, run)) for run in runs])
    draws = rng.multinomial(len(runs), np.full(len(runs), 1 / len(runs)), RESAMPLES) / len(runs)
    places = np.round(draws @ ranks).astype(np.int64)
    scores: Floats = scale.standardise(scale.ranked[places]).mean(axis=1)
    whole = scale.standardise(scale.ranked[np.round(ranks.mean(axis=0)).astype(np.int64)]).mean()
    return scores + float(standardised_curve(scale, runs).mean() - whole)


def interval(scores: Floats) -> tuple[float, float]:
    """What covers `CONFIDENCE` of resampled scores."""
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(scores, (tail, 1 - tail))
    return float(low), float(high)
