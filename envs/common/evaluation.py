"""What is known about a candidate after it was built, verified and timed.

A bad candidate is an `Evaluation` with a status, never an exception; a speedup exists only where every
check passed, and impossible combinations can't be built.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

PROTOCOL = "2"
"""Version of the measurement protocol. It is part of every store key."""


class Status(StrEnum):
    """The verdict on a candidate."""

    OK = "ok"
    """Verified and timed."""
    SLOWER = "slower"
    """Verified; so much slower than the baseline that timing stopped early."""
    REJECTED = "rejected"
    """Not a well-formed program, or over a size limit; nothing was run."""
    BUILD_FAILED = "build_failed"
    """The compiler refused it."""
    CRASHED = "crashed"
    """The worker died while running it."""
    TIMEOUT = "timeout"
    """It ran, or compiled, past the limit."""
    OUT_OF_MEMORY = "out_of_memory"
    """It asked for more than the limit."""
    WRONG = "wrong"
    """An output differs from the oracle."""
    INVALID_TIME = "invalid_time"
    """A time of zero, below the roofline floor, or without spread."""
    SUSPECT = "suspect"
    """Too good to be believed, and the audit did not confirm it."""

    @property
    def verified(self) -> bool:
        return self in (Status.OK, Status.SLOWER)


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison with the float64 oracle: errors as multiples of what is allowed (passes at <= 1)."""

    name: str
    """Input set and output, as `normal/C`."""
    max_error: float
    """Largest absolute error over its bound."""
    rms_error: float
    """Root mean square error over its bound."""
    bitwise: bool
    """Equal, bit for bit, to the root program's output."""

    @property
    def passed(self) -> bool:
        return self.max_error <= 1 and self.rms_error <= 1


@dataclass(frozen=True, slots=True)
class Timing:
    """Interleaved samples of the candidate and of the baseline, in seconds for one run."""

    candidate: tuple[float, ...]
    baseline: tuple[float, ...]
    baseline_name: str
    ratio: float
    """Median baseline time over median candidate time: the speedup over the baseline."""
    low: float
    high: float
    """A 95 % bootstrap interval of `ratio`."""

    def __post_init__(self) -> None:
        if not self.candidate or not self.baseline or min(*self.candidate, *self.baseline) <= 0:
            raise ValueError("timing needs positive samples of candidate and baseline")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The record of one candidate. Only a verified one has a timing, hence a speedup."""

    key: str
    status: Status
    detail: str = ""
    """One sentence: what failed, with names and numbers."""
    checks: tuple[Check, ...] = ()
    timing: Timing | None = None
    root_ratio: float | None = None
    """Time of the root program over that of the baseline, measured once a workload."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Where the time of this evaluation went, by phase (build, check, time)."""
    environment: dict[str, str] = field(default_factory=dict)
    """Target, device, toolchain, protocol."""
    audited: bool = False
    """Confirmed in a fresh process with new seeds and other sizes."""

    def __post_init__(self) -> None:
        if self.status.verified != (self.timing is not None):
            raise ValueError(f"an evaluation is timed if and only if it is verified, not {self.status}")
        if self.status.verified and not (self.checks and all(check.passed for check in self.checks)):
            raise ValueError("a verified evaluation has checks, all of them passed")

    @property
    def speedup(self) -> float | None:
        """Over the baseline (the default schedule); None unless verified."""
        return self.timing.ratio if self.timing else None

    @property
    def speedup_over_root(self) -> float | None:
        """Over the root program; None unless verified and the root was timed."""
        return self.timing.ratio * self.root_ratio if self.timing and self.root_ratio else None

    @property
    def log_speedup(self) -> float | None:
        """Natural logarithm of `speedup`."""
        return math.log(self.timing.ratio) if self.timing else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        timing = data["timing"]
        return cls(
            **{
                **data,
                "status": Status(data["status"]),
                "checks": tuple(Check(**check) for check in data["checks"]),
                "timing": timing
                and Timing(
                    **{
                        **timing,
                        "candidate": tuple(timing["candidate"]),
                        "baseline": tuple(timing["baseline"]),
                    }
                ),
            }
        )
