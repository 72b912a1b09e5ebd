"""What a step earns, so that the return of an episode is the performance score of its run.

    score    the area under the standardised curve that passed while the step ran, on what was best before it
    credit   the same return, given when it is earned: a better configuration is paid for the rest of the range
    log      the logarithm of the improvement over the best so far; the return is that of best over first

Until something is found there is nothing to weigh; what is found first counts from the begin of the range, as in
`score.step_curve`. A run that finds nothing has the worst configuration of the space.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

from envs.autotune_env.score import POINTS, Scale

REWARDS = ("score", "credit", "log")


@dataclass(frozen=True, slots=True, eq=False)
class Area:
    """Areas under the standardised curve, in constant time."""

    scale: Scale
    times: list[float] = field(init=False)
    offsets: list[float] = field(init=False)
    slopes: list[float] = field(init=False)
    """Sums of the scale's offsets and slopes over the first points, divided by the number of points."""

    def __post_init__(self) -> None:
        scale = self.scale
        object.__setattr__(self, "times", scale.times.tolist())
        for name, values in (("offsets", scale.offsets), ("slopes", scale.slopes)):
            object.__setattr__(self, name, [0.0, *(np.cumsum(values) / POINTS).tolist()])

    @property
    def worst(self) -> float:
        """The greatest loss of the space."""
        return float(self.scale.ranked[-1])

    def reached(self, clock: float) -> int:
        """How many points lie before the clock."""
        return bisect_left(self.times, clock)

    def between(self, first: int, last: int, loss: float) -> float:
        """The area from point `first` up to point `last` while the best is `loss`."""
        return self.offsets[last] - self.offsets[first] + loss * (self.slopes[last] - self.slopes[first])


@functools.lru_cache(maxsize=64)
def area(scale: Scale) -> Area:
    """The areas of a scale, made once."""
    return Area(scale)


def earned(kind: str, area: Area, before: int, after: int, old: float, new: float, over: bool) -> float:
    """What a step earns that goes from point `before` to point `after`, and from the loss `old` to `new`.

    A loss is infinite while nothing has been found. When it is `over`, the rest of the range is held.
    """
    if kind == "log":
        return _log_gain(old, new)
    end = POINTS
    if math.isinf(new):
        return area.between(0, end, area.worst) if over else 0.0
    if math.isinf(old):
        return area.between(0, end if over or kind == "credit" else after, new)
    if kind == "credit":
        return 0.0 if new == old else area.between(after, end, new) - area.between(after, end, old)
    return area.between(before, after, old) + (area.between(after, end, new) if over else 0.0)


def _log_gain(old: float, new: float) -> float:
    """The logarithm of old over new, of losses that are both positive (a time) or both negative (a rate)."""
    if math.isinf(old) or new == old:
        return 0.0
    return math.log(old / new) if new > 0 else math.log(new / old)
