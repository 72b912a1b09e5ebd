"""What compiling and running a configuration gives; what goes wrong is a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envs.autotune_env.kernels import find
from envs.autotune_env.kernels.definition import Kernel
from envs.autotune_env.space import Status


@dataclass(frozen=True, slots=True)
class Task:
    """A kernel of the table, and the device's own compiler option; small enough to be sent to a worker."""

    name: str
    constants: tuple[tuple[str, int], ...] = ()
    """Those that differ from the table."""
    target: str = ""
    """What to compile for: `sm_90`; empty for this machine's processor."""

    @property
    def kernel(self) -> Kernel:
        """The kernel, with the constants."""
        return find(self.name, **dict(self.constants))


@dataclass(frozen=True, slots=True)
class Built:
    """It compiled."""

    code: bytes
    """A cubin or a shared library."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Its output was right, and it was timed."""

    runs: tuple[float, ...]
    """Milliseconds each."""
    verification: float
    """Seconds to run it once and to compare the output."""
    benchmark: float
    """Seconds for all runs, those to warm up included."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It did not get that far."""

    status: Status
    reason: str
    seconds: float


def wrong(mistakes: int, size: int, seconds: float) -> Failed:
    """The failure of an output with mistakes."""
    return Failed(Status.CORRECTNESS, f"{mistakes:,} of {size:,} elements of the output are wrong", seconds)


Versions = Mapping[str, str]
"""The device and the tools, by what they are: `device`, `target`, `compiler`, ..."""
