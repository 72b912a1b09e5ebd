"""A recorded tuning space: what every allowed configuration did on one device, and what finding out cost.

Recordings come from Kernel Tuner caches and T4 files (`readers`), from the compact files that ship (`compact`) and
from a generator (`synthetic`). A space is a value: every array is read-only, and every check is made once, here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from envs.autotune_env.domain import Domain, SpaceError

Floats = npt.NDArray[np.float64]


class Status(IntEnum):
    """What became of a configuration; the names are those of the T4 format."""

    CORRECT = 0
    """It ran, and was measured."""
    CONSTRAINTS = 1
    """It is against a rule of the device or of the kernel."""
    COMPILE = 2
    """The compiler refused it."""
    RUNTIME = 3
    """It could not be launched, or crashed."""
    CORRECTNESS = 4
    """Its output was wrong."""
    TIMEOUT = 5
    """It ran past the limit."""

    @property
    def label(self) -> str:
        """The name in texts and files."""
        return self.name.lower()


COSTS = ("compile", "verification", "benchmark", "framework")
"""The columns of the costs: seconds to compile, to check the output, to run the samples, and the tuner's own."""

UNITS = {
    "s": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "milliseconds": 1e-3,
    "miliseconds": 1e-3,  # as public files spell it
    "microseconds": 1e-6,
    "us": 1e-6,
    "nanoseconds": 1e-9,
    "ns": 1e-9,
}
"""Seconds in each unit of time."""

LOWER_IS_BETTER = frozenset({"time", "energy", "runtime", "cost", "latency"})
"""Objectives that are minimised."""


def is_rate(objective: str) -> bool:
    """Whether an objective is work over time, such as GFLOP/s: inverse to the time of a run."""
    return objective.endswith("/s")


def direction(objective: str, higher_is_better: bool | None = None) -> bool:
    """Whether more of an objective is better. Raises `SpaceError` where its name does not say and nobody does."""
    if higher_is_better is not None:
        return higher_is_better
    if objective.lower() in LOWER_IS_BETTER:
        return False
    if is_rate(objective):
        return True
    raise SpaceError(f"objective {objective}: its name does not say whether more is better; say so")


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """The record of a kernel on a device: one row for each allowed configuration. Equal only to itself."""

    name: str
    """`application/device`."""
    domain: Domain
    status: npt.NDArray[np.int8]
    """(N,): a `Status` each."""
    values: Floats
    """(N,): the objective, the mean of the samples; NaN unless correct."""
    costs: npt.NDArray[np.float32]
    """(N, 4): seconds that the evaluation took, by `COSTS`."""
    samples: npt.NDArray[np.float32] | None = None
    """(N, R): single measurements of the objective, NaN where there are fewer; None if none were kept."""
    kernel: str = ""
    device: str = ""
    objective: str = "time"
    unit: str = "ms"
    higher_is_better: bool = False
    problem_size: str = ""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where the record comes from: file, licence, date, toolchain."""
    losses: Floats = field(init=False)
    """(N,): the objective turned so that less is better; NaN unless correct."""
    seconds: Floats = field(init=False)
    """(N,): what an evaluation costs altogether."""

    def __post_init__(self) -> None:
        if self.name.count("/") != 1 or self.name.strip("/") != self.name:
            raise SpaceError(f"a space is called application/device, not {self.name!r}")
        _check_shapes(self)
        _check_values(self)
        object.__setattr__(self, "losses", -self.values if self.higher_is_better else self.values)
        object.__setattr__(self, "seconds", self.costs.astype(np.float64).sum(axis=1))
        for array in (self.status, self.values, self.costs, self.samples, self.losses, self.seconds):
            if array is not None:
                array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.domain)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """(N,): which configurations were measured."""
        correct: npt.NDArray[np.bool_] = self.status == Status.CORRECT
        return correct

    @property
    def application(self) -> str:
        """The first part of the name."""
        return self.name.partition("/")[0]

    @property
    def failures(self) -> dict[str, int]:
        """How many configurations failed in each way."""
        counts = np.bincount(self.status, minlength=len(Status))
        return {status.label: int(counts[status]) for status in Status if status and counts[status]}

    def gain(self, value: float, over: float) -> float:
        """How many times better one value of the objective is than another."""
        return value / over if self.higher_is_better else over / value


def _check_shapes(space: Space) -> None:
    count = len(space.domain)
    wanted: dict[str, tuple[Any, tuple[int, ...]]] = {
        "status": (np.int8, (count,)),
        "values": (np.float64, (count,)),
        "costs": (np.float32, (count, len(COSTS))),
    }
    if space.samples is not None:
        width = space.samples.shape[1] if space.samples.ndim == 2 else 0
        wanted["samples"] = (np.float32, (count, width))
    for name, (dtype, shape) in wanted.items():
        array = getattr(space, name)
        if array.dtype != dtype or array.shape != shape:
            raise SpaceError(
                f"{space.name}: {name} is an array of {np.dtype(dtype)} {shape} for {count:,} configurations, "
                f"not of {array.dtype} {array.shape}"
            )


def _check_values(space: Space) -> None:
    correct = space.correct
    if space.status.min() < 0 or space.status.max() >= len(Status):
        row = int(np.argmax((space.status < 0) | (space.status >= len(Status))))
        raise SpaceError(f"{_at(space, row)}: {space.status[row]} is no status")
    if not correct.any():
        raise SpaceError(f"{space.name}: all {len(space):,} configurations failed")
    _demand(space, ~correct | (np.isfinite(space.values) & (space.values > 0)), "its objective is a positive number")
    _demand(space, correct | np.isnan(space.values), "one that failed has no objective")
    _demand(space, np.all(np.isfinite(space.costs) & (space.costs >= 0), axis=1), "its costs are seconds, 0 or more")
    _demand(space, space.costs.sum(axis=1) > 0, "an evaluation costs more than nothing")
    if space.samples is not None:
        known = np.isfinite(space.samples).any(axis=1)
        _demand(space, known == correct, "it has samples if and only if it was measured")


def _demand(space: Space, holds: npt.NDArray[np.bool_], rule: str) -> None:
    if not holds.all():
        row = int(np.argmin(holds))
        raise SpaceError(f"{_at(space, row)} breaks a rule: {rule}")


def _at(space: Space, row: int) -> str:
    return f"{space.name}: configuration {space.domain.label(row)}"
