"""What travels between the evaluator and its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from envs.leir_env.interp import Array
from envs.leir_env.ir import Program


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know about a candidate; a candidate may know all of it."""

    program: Program
    root: Program
    """Says what inputs are drawn."""
    baseline: Program
    target: str
    seed: int
    sets: tuple[str, ...]
    """Input sets to run on, most telling first."""
    hopeless: float
    """A candidate this many times slower than the baseline is run on the first sets only."""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What came out of a candidate."""

    outputs: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    """By input set, in header order."""
    build_error: str = ""
    damage: str = ""
    """What the candidate did that none may, in words: the worker is not to be trusted again."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By phase: build, check; and the shortest run."""


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Samples in seconds for one run, pair by pair, and what the timed runs computed."""

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    outputs: Mapping[str, tuple[Array, ...]]
    damage: str = ""
