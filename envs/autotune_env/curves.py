"""Two classical tools for monotone curves, in NumPy: isotonic regression and monotone cubic interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def isotonic(y: Floats, weight: Floats, increasing: bool = True) -> Floats:
    """The monotone sequence nearest to `y` in weighted least squares, by pooling adjacent violators.

    Any two neighbouring blocks out of order share a value in the solution, and so does a whole run of them; so
    each round pools all such runs at once, in array operations (Barlow et al. 1972, Robertson et al. 1988).
    """
    if not increasing:
        return -isotonic(-y, weight)
    starts = np.arange(len(y))
    means, weights = y.astype(np.float64), weight.astype(np.float64)
    while True:
        keeps = np.empty(len(means), np.bool_)
        keeps[:1] = True
        np.greater(means[1:], means[:-1], out=keeps[1:])
        if keeps.all():
            break
        heads = np.flatnonzero(keeps)
        totals = np.add.reduceat(weights, heads)
        means = np.add.reduceat(means * weights, heads) / totals
        starts, weights = starts[heads], totals
    return np.repeat(means, np.diff(np.append(starts, len(y))))


def pooled(x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """The distinct values of `x`, ascending, with the mean of `y` and the number of points at each."""
    by_x = np.argsort(x, kind="stable")
    x, y = x[by_x], y[by_x]
    heads = np.flatnonzero(np.append(True, x[1:] > x[:-1])[: len(x)])
    counts = np.diff(np.append(heads, len(x))).astype(np.float64)
    return x[heads], np.add.reduceat(y, heads) / counts, counts


def isotonic_curve(x: Floats, y: Floats, at: Floats, increasing: bool = True) -> Floats:
    """Fit a monotone curve to points and read it off: linear between points, constant beyond the outer ones."""
    knots, means, counts = pooled(x, y)
    curve: Floats = np.interp(at, knots, isotonic(means, counts, increasing))
    return curve


def monotone_cubic(x: Floats, y: Floats, at: Floats) -> Floats:
    """Interpolate by the piecewise cubic that keeps monotone data monotone (Fritsch and Butland 1984).

    `x` ascends strictly and has two points or more; `at` lies within them.
    """
    steps, slopes = np.diff(x), np.diff(y) / np.diff(x)
    if len(x) == 2:
        line: Floats = y[0] + slopes[0] * (at - x[0])
        return line
    tangents = np.concatenate([[_end(steps, slopes)], _inner(steps, slopes), [_end(steps[::-1], slopes[::-1])]])
    piece = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(steps) - 1)
    h, t = steps[piece], (at - x[piece]) / steps[piece]
    left, right = y[piece], y[piece + 1]
    rise, fall = h * tangents[piece], h * tangents[piece + 1]
    chord = right - left
    curve: Floats = left + t * (rise + t * ((3 * chord - 2 * rise - fall) + t * (rise + fall - 2 * chord)))
    return curve


def _inner(steps: Floats, slopes: Floats) -> Floats:
    """Weighted harmonic means of neighbouring slopes; 0 where the data turns or rests."""
    before, after = slopes[:-1], slopes[1:]
    first, second = 2 * steps[1:] + steps[:-1], steps[1:] + 2 * steps[:-1]
    same = before * after > 0
    mean = np.zeros(len(before))
    np.divide((first + second) * before * after, first * after + second * before, out=mean, where=same)
    return mean


def _end(steps: Floats, slopes: Floats) -> Any:
    """The tangent at an end from three points, held back where it would break the shape."""
    tangent = ((2 * steps[0] + steps[1]) * slopes[0] - steps[0] * slopes[1]) / (steps[0] + steps[1])
    if tangent * slopes[0] <= 0:
        return 0.0
    if slopes[0] * slopes[1] <= 0 and abs(tangent) > 3 * abs(slopes[0]):
        return 3 * slopes[0]
    return tangent
