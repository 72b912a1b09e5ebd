"""Who says what a configuration does: an oracle. Replaying a record needs neither a device nor Kernel Tuner.

`Replay` answers from the compact arrays of a `Space`, whether that was shipped or read from a cache file.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from envs.autotune_env.domain import Domain, SpaceError
from envs.autotune_env.space import Space, Status

NOISES = ("mean", "resample")
"""`mean` answers with the mean of the recorded samples, `resample` with one of them, drawn at random."""


class Outcome(NamedTuple):
    """What is known about a configuration after it was tried."""

    status: Status
    loss: float
    """The objective, turned so that less is better; NaN unless the status is correct."""
    seconds: float
    """What finding out cost."""


class Oracle(Protocol):
    """Answers for the configurations of a domain, by row. A failure is an answer."""

    @property
    def domain(self) -> Domain:
        """What may be asked."""
        ...

    def evaluate(self, row: int, rng: np.random.Generator) -> Outcome:
        """Try one configuration."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Answers from a record. Raises `SpaceError` where the noise is to be resampled and no samples were kept."""

    space: Space
    noise: str = "mean"
    record: tuple[list[Status], list[float], list[float]] = field(init=False)
    """Statuses, losses and costs by row, as Python values."""

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise ValueError(f"noise is one of {', '.join(NOISES)}, not {self.noise!r}")
        if self.noise == "resample" and self.space.samples is None:
            raise SpaceError(f"{self.space.name}: the record kept no samples, so that noise can only be 'mean'")
        statuses = list(map(tuple(Status).__getitem__, self.space.status.tolist()))
        object.__setattr__(self, "record", (statuses, self.space.losses.tolist(), self.space.seconds.tolist()))

    @property
    def domain(self) -> Domain:
        return self.space.domain

    def evaluate(self, row: int, rng: np.random.Generator) -> Outcome:
        """Look up; with `resample`, the loss is that of one recorded sample."""
        statuses, losses, seconds = self.record
        outcome = Outcome(statuses[row], losses[row], seconds[row])
        if self.noise == "mean" or outcome.status:
            return outcome
        assert self.space.samples is not None
        samples = self.space.samples[row]
        count = int(np.count_nonzero(samples == samples))  # the rest is NaN
        value = float(samples[rng.integers(count)])
        return outcome._replace(loss=-value if self.space.higher_is_better else value)


@functools.lru_cache(maxsize=64)
def replay(space: Space, noise: str = "mean") -> Replay:
    """The oracle of a record, made once."""
    return Replay(space, noise)
