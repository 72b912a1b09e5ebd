"""The classic optimisers with the best parameters of a grid: the baselines that a designed optimiser has to beat.

    python -m envs.autotune_env.optimizers.tuned FOLDER convolution/A100 dedispersion/A100 ...

runs every grid on the spaces of a folder with equal seeds, and writes all of it to `tuned.json`, which ships.
"""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from envs.autotune_env.optimizers import Optimizer, make_optimizer
from envs.autotune_env.space import Space

TABLE = Path(__file__).parent / "tuned.json"

REPEATS = 15
"""Runs of each choice on each space."""

GRIDS: Mapping[str, Mapping[str, Sequence[Any]]] = MappingProxyType(
    {
        "genetic": {
            "population": (8, 16, 26),
            "crossover": ("single_point", "uniform"),
            "mutation": (0.02, 0.1, 0.3),
            "elite": (0, 2),
        },
        "annealing": {"hot": (0.03, 0.1, 0.3, 1.0), "cold": (1e-4, 1e-3, 1e-2), "jump": (0.2, 0.5, 0.8)},
        "evolution": {"population": (8, 15, 30), "weight": (0.4, 0.7, 1.0), "crossover": (0.2, 0.5, 0.9)},
    }
)
"""What is tried for each optimiser."""


@functools.cache
def table() -> Mapping[str, Any]:
    """What the grids gave: for each optimiser `parameters`, the best, and `grid`, all; and where that was run."""
    content: Mapping[str, Any] = json.loads(TABLE.read_text())
    return content


def tuned(name: str) -> Optimizer:
    """The optimiser of that name with the best parameters of its grid."""
    return make_optimizer(name, **table()["optimizers"][name]["parameters"])


genetic = functools.partial(tuned, "genetic")
annealing = functools.partial(tuned, "annealing")
evolution = functools.partial(tuned, "evolution")


def choices(name: str) -> Iterator[dict[str, Any]]:
    """Every choice of a grid."""
    for values in itertools.product(*GRIDS[name].values()):
        yield dict(zip(GRIDS[name], values, strict=True))


def search(spaces: Sequence[Space], repeats: int = REPEATS, seed: int = 0) -> dict[str, Any]:
    """Run the grids."""
    from envs.autotune_env.simulate import assess

    found: dict[str, Any] = {}
    for name in GRIDS:
        grid: list[dict[str, Any]] = []
        for parameters in choices(name):
            score = assess(make_optimizer(name, **parameters), spaces, repeats, seed).total
            interval = [round(score.low, 4), round(score.high, 4)]
            grid.append({"parameters": parameters, "score": round(score.mean, 4), "interval": interval})
        best = max(grid, key=lambda entry: entry["score"])
        found[name] = {"parameters": best["parameters"], "score": best["score"], "grid": grid}
    return {"spaces": [space.name for space in spaces], "repeats": repeats, "seed": seed, "optimizers": found}


def main(folder: str, *names: str) -> None:
    """Run the grids and write the table."""
    from envs.autotune_env import suite

    found = search(suite.resolve(names, None, Path(folder), samples=False))
    TABLE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
