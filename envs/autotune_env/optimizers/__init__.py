"""Optimisers: they ask for a configuration and are told what it did. They know the domain and nothing of the oracle."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from envs.autotune_env.domain import Domain
from envs.autotune_env.oracle import Outcome

OPTIMIZERS: dict[str, str] = {
    "random": "envs.autotune_env.optimizers.random_search:RandomSearch",
    "genetic": "envs.autotune_env.optimizers.population:Genetic",
    "annealing": "envs.autotune_env.optimizers.local:Annealing",
    "swarm": "envs.autotune_env.optimizers.population:ParticleSwarm",
    "local-search": "envs.autotune_env.optimizers.local:IteratedLocalSearch",
    "evolution": "envs.autotune_env.optimizers.population:DifferentialEvolution",
    "hybrid-vndx": "envs.autotune_env.optimizers.generated:HybridVNDX",
    "tabu-grey-wolf": "envs.autotune_env.optimizers.generated:AdaptiveTabuGreyWolf",
    "pyatf": "envs.autotune_env.optimizers.pyatf:PyATF",
    "kernel-tuner": "envs.autotune_env.optimizers.kernel_tuner:KernelTuner",
}
"""Every optimiser by name, as `module:factory`; a factory takes the optimiser's parameters by keyword."""


class Tuner(Protocol):
    """One run of an optimiser: ask, tell, ask, tell."""

    def ask(self) -> int:
        """The row to try next; `NOWHERE` for a choice that is no configuration."""
        ...

    def tell(self, row: int, outcome: Outcome, spent: float) -> None:
        """Hear what a row did, and which part of the budget, from 0 to 1, is spent."""
        ...


class Optimizer(Protocol):
    """A search strategy: frozen, its parameters are its fields."""

    def start(self, domain: Domain, rng: np.random.Generator) -> Tuner:
        """Begin a run."""
        ...


def make_optimizer(name: str, **parameters: Any) -> Optimizer:
    """Build the optimiser called `name`. Raises `ValueError` for an unknown name."""
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimiser is called {name}; there are {', '.join(OPTIMIZERS)}")
    module, _, factory = OPTIMIZERS[name].partition(":")
    make: Callable[..., Optimizer] = getattr(importlib.import_module(module), factory)
    return make(**parameters)
