"""The statistics of a measurement: functions of samples; the clock belongs to the harness.

Candidate and baseline are timed in turn, in random order within each pair, so that drift of the machine hits
both; the speedup is the ratio of their medians, which 20 pairs know to about 3 % and 100 to under 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from envs.common.evaluation import Timing

Samples = Sequence[float] | npt.NDArray[np.float64]

RESAMPLES = 400
"""Bootstrap resamples behind an interval."""

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Rules:
    """When to stop measuring."""

    pairs: int = 20
    """Fewest pairs behind a speedup."""
    most: int = 200
    """Most pairs."""
    width: float = 0.02
    """Half the interval, relative to the ratio, that is narrow enough."""
    seconds: float = 0.5
    """After so long, `pairs` are enough whatever the interval."""
    patience: float = 0.5
    """After so long, `least` pairs are enough: long runs scatter less."""
    least: int = 5
    """Fewest pairs behind the speedup of a slow program."""
    hopeless: float = 4.0
    """A candidate this many times slower than the baseline is not worth more pairs."""
    glimpse: int = 3
    """Pairs behind that verdict; one will do where patience is at its end."""
    block: float = 100e-6
    """Shortest time between two readings of the clock; shorter kernels are repeated within it."""


def order(pairs: int, rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Say for each pair whether the candidate goes first."""
    return rng.random(pairs) < 0.5


def repetitions(seconds: float, rules: Rules) -> int:
    """Return how many runs of `seconds` fill a block."""
    return max(1, int(np.ceil(rules.block / max(seconds, 1e-9))))


def ratio(candidate: Samples, baseline: Samples) -> float:
    """Return the speedup: median baseline time over median candidate time."""
    return float(np.median(baseline) / np.median(candidate))


def interval(candidate: Samples, baseline: Samples, seed: int = 0) -> tuple[float, float]:
    """Bootstrap the 95 % interval of `ratio`, resampling whole pairs."""
    pairs = np.array([candidate, baseline])
    count = pairs.shape[1]
    draws = np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
    ordered = np.sort(pairs[:, draws], axis=2)
    fast, slow = ordered[:, :, (count - 1) // 2] + ordered[:, :, count // 2]
    ratios = np.sort(slow / fast)
    tail = round(RESAMPLES * (1 - CONFIDENCE) / 2)
    return float(ratios[tail]), float(ratios[-1 - tail])


def is_hopeless(candidate: Samples, baseline: Samples, rules: Rules) -> bool:
    """Is the candidate far slower than the baseline, by medians and by minima?

    Other processes can slow most samples of a few, but hardly all.
    """
    speedup = max(ratio(candidate, baseline), float(np.min(baseline) / np.min(candidate)))
    return speedup * rules.hopeless < 1


def enough(candidate: Samples, baseline: Samples, spent: float, rules: Rules) -> bool:
    """Stop after these pairs, which took `spent` seconds?

    Yes when the candidate is hopeless, when the interval is narrow, and when time or pairs run out.
    """
    count = len(candidate)
    impatient = spent >= rules.patience
    look = count % 10 == 0  # statistics cost up to a millisecond
    if (look or impatient or count == rules.glimpse) and is_hopeless(candidate, baseline, rules):
        return True
    if count < rules.pairs:
        return impatient and count >= rules.least
    if spent >= rules.seconds or count >= rules.most:
        return True
    if not look:
        return False
    low, high = interval(candidate, baseline)
    return (high - low) / 2 <= rules.width * ratio(candidate, baseline)


def interleave(
    candidate: Callable[[], float],
    baseline: Callable[[], float],
    rules: Rules,
    rng: np.random.Generator,
    clock: Callable[[], float],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Call both in turn, in random order within each pair, until the rules have enough; return the samples.

    Each call runs a block and returns its seconds for one run. `clock` gives seconds.
    """
    blocks = (candidate, baseline)
    samples: tuple[list[float], list[float]] = ([], [])
    started = clock()
    for first in order(rules.most, rng):
        for which in (0, 1) if first else (1, 0):
            samples[which].append(blocks[which]())
        if enough(*samples, clock() - started, rules):
            break
    return tuple(samples[0]), tuple(samples[1])


def invalid(candidate: Samples, floor: float) -> str:
    """Say why these samples can't be true, or nothing.

    `floor` is the shortest time, in seconds, in which the hardware can do the work.
    """
    if not len(candidate):
        return "there is no sample"
    least = float(np.min(candidate))
    if not np.all(np.isfinite(candidate)) or least <= 0:
        return f"a sample of {least} s is not a time"
    if least < floor:
        return f"a sample of {least:.3g} s is below the roofline floor of {floor:.3g} s"
    if len(candidate) >= 10 and float(np.ptp(candidate)) == 0:
        return f"all {len(candidate)} samples are {least:.3g} s; real ones scatter"
    return ""


def summarise(candidate: Samples, baseline: Samples, baseline_name: str) -> Timing:
    """Make the record of a measurement from its samples, in seconds for one run, pair by pair."""
    low, high = interval(candidate, baseline)
    return Timing(
        tuple(float(s) for s in candidate),
        tuple(float(s) for s in baseline),
        baseline_name,
        ratio(candidate, baseline),
        low,
        high,
    )
