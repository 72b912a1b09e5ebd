"""Optimisers: they ask for a configuration and are told what it did. They know the domain and nothing of the oracle."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from envs.autotune_env.domain import Domain
from envs.autotune_env.oracle import Outcome

OPTIMIZERS: dict[str, str] = {
    "random": "envs.autotune_env.optimizers.random_search:RandomSearch",
    "genetic": "envs.autotune_env.optimizers.population:Genetic",
    "annealing": "envs.autotune_env.optimizers.local:Annealing",
    "evolution": "envs.autotune_env.optimizers.population:DifferentialEvolution",
    "genetic-tuned": "envs.autotune_env.optimizers.tuned:genetic",
    "annealing-tuned": "envs.autotune_env.optimizers.tuned:annealing",
    "evolution-tuned": "envs.autotune_env.optimizers.tuned:evolution",
    "swarm": "envs.autotune_env.optimizers.population:ParticleSwarm",
    "local-search": "envs.autotune_env.optimizers.local:IteratedLocalSearch",
    "hybrid-vndx": "envs.autotune_env.optimizers.generated:HybridVNDX",
    "tabu-grey-wolf": "envs.autotune_env.optimizers.generated:AdaptiveTabuGreyWolf",
    "evolved": "envs.autotune_env.optimizers.evolved:Evolved",
    "pyatf": "envs.autotune_env.optimizers.pyatf:PyATF",
    "kernel-tuner": "envs.autotune_env.optimizers.kernel_tuner:KernelTuner",
}
"""Every optimiser by name, as `module:factory`; a factory takes the optimiser's parameters by keyword."""

VARIANTS: Mapping[str, str] = {"pyatf": "technique", "kernel-tuner": "strategy"}
"""Optimisers with variants, written `kernel-tuner:pso`, and the parameter that says which."""

EXTRAS: Mapping[str, str] = {"pyatf": "pyatf", "kernel-tuner": "kernel_tuner"}
"""Packages that optimisers need beyond those that are always there."""


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


def installed() -> list[str]:
    """The optimisers whose packages are there."""
    return [name for name in OPTIMIZERS if name not in EXTRAS or importlib.util.find_spec(EXTRAS[name])]


def variants(name: str) -> list[str]:
    """All variants of an optimiser that has them, as `name:variant`. Raises ModuleNotFoundError without its package."""
    module = importlib.import_module(OPTIMIZERS[name].partition(":")[0])
    return [f"{name}:{variant}" for variant in module.variants()]


def make_optimizer(name: str, **parameters: Any) -> Optimizer:
    """Build the optimiser called `name`, or `name:variant`. Raises `ValueError` for an unknown name."""
    name, _, variant = name.partition(":")
    if name not in OPTIMIZERS:
        raise ValueError(f"no optimiser is called {name}; there are {', '.join(OPTIMIZERS)}")
    if variant:
        if name not in VARIANTS:
            raise ValueError(f"optimiser {name} has no variants; those that have are {', '.join(VARIANTS)}")
        parameters[VARIANTS[name]] = variant
    module, _, factory = OPTIMIZERS[name].partition(":")
    make: Callable[..., Optimizer] = getattr(importlib.import_module(module), factory)
    return make(**parameters)
