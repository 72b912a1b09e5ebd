"""Pictures of a space: how its configurations are distributed, and what random search is expected to find."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from envs.autotune_env.score import scale
from envs.autotune_env.space import Space


def plot(space: Space, path: Path) -> None:
    """Draw a space to an image file; its suffix says which kind. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    values = space.values[space.correct]
    left.hist(values, bins=np.geomspace(values.min(), values.max(), 60))
    left.set(xscale="log", xlabel=f"{space.objective} ({space.unit})", ylabel="configurations", title=space.name)
    left.axvline(float(np.median(values)), color="tab:orange", label="median")
    left.legend()
    measure = scale(space)
    right.plot(measure.times, np.abs(measure.baseline), label="random search, expected")
    right.axhline(abs(float(measure.ranked[0])), color="tab:green", label="optimum")
    right.set(xlabel="virtual seconds", ylabel=f"best {space.objective} ({space.unit})", yscale="log")
    right.set_title(f"{measure.evaluations[1]:,} evaluations in {measure.end:,.0f} s to 95 %")
    right.legend()
    figure.savefig(path)
