"""Random search without replacement: what every optimiser is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from envs.autotune_env.domain import NOWHERE, Domain
from envs.autotune_env.oracle import Outcome


@dataclass(frozen=True, slots=True)
class RandomSearch:
    """Tries every configuration once, in random order."""

    def start(self, domain: Domain, rng: np.random.Generator) -> _Order:
        return _Order(iter(rng.permutation(len(domain)).tolist()))


@dataclass(slots=True)
class _Order:
    """A random order, from the place where it stands."""

    rows: Iterator[int]

    def ask(self) -> int:
        return next(self.rows, NOWHERE)

    def tell(self, row: int, outcome: Outcome, spent: float) -> None:
        """Learn nothing."""
