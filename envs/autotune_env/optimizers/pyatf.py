"""The search techniques of pyATF (`pip install 'leirgym[atf]'`), driven as they are.

pyATF's techniques ask for points of the unit cube and hear what they cost; `tree` says which configuration a point
means, as pyATF's own search space does. They draw from the module `random`: while one runs, a generator of our own
stands in its place, so that a run repeats from its seed.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from envs.autotune_env.optimizers.search import FAILED, Search, Searcher, View
from envs.autotune_env.optimizers.tree import tree

TECHNIQUES = {
    "auc_bandit": "AUCBandit",
    "differential_evolution": "DifferentialEvolution",
    "pattern_search": "PatternSearch",
    "random": "Random",
    "simulated_annealing": "SimulatedAnnealing",
    "torczon": "Torczon",
}
"""Modules of pyATF, and the technique in each."""


@dataclass(frozen=True, slots=True)
class PyATF(Searcher):
    """One of pyATF's search techniques, with the parameters that are fixed in its code.

    Raises ModuleNotFoundError where pyATF is missing.
    """

    technique: str = "differential_evolution"

    def __post_init__(self) -> None:
        if self.technique not in TECHNIQUES:
            raise ValueError(f"a technique is one of {', '.join(TECHNIQUES)}, not {self.technique!r}")
        _module(self.technique)

    def search(self, view: View) -> Search:
        modules = _modules()
        make: Callable[[], Any] = getattr(_module(self.technique), TECHNIQUES[self.technique])
        points = tree(view.domain)
        with _chance(modules, view.rng):
            technique = make()
            technique.initialize(len(view.domain.sizes))
        while True:
            with _chance(modules, view.rng):
                wanted = technique.get_next_coordinates()
            costs = {}
            for point in sorted(wanted):
                loss = yield points.row(point)
                costs[point] = None if loss == FAILED else loss
            with _chance(modules, view.rng):
                technique.report_costs(costs)


def variants() -> tuple[str, ...]:
    """The names of the techniques."""
    return tuple(TECHNIQUES)


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"pyatf.search_techniques.{name}")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pyATF is not installed: pip install 'leirgym[atf]'", name="pyatf") from error


def _modules() -> list[ModuleType]:
    """The modules of pyATF's techniques that draw from `random`."""
    return [_module(name) for name in TECHNIQUES]


@contextmanager
def _chance(modules: list[ModuleType], rng: random.Random) -> Iterator[None]:
    """Have the modules draw from `rng`."""
    for module in modules:
        module.random = rng  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.random = random  # type: ignore[attr-defined]
