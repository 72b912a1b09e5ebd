"""Turns on the cores of a machine: many may build on them, or one may measure."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


def cores() -> tuple[int, ...]:
    """The cores that this process may run on, in ascending order (`taskset` and `os.sched_setaffinity` choose them)."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


class Turns:
    """Lock files that processes share, one for each core. The kernel frees them when a holder dies.

    Build and check under `together`, time under `alone`, so that no measurement runs beside another or beside
    a compiler. Processes that are pinned to different cores do not wait for each other.
    """

    def __init__(self, path: Path) -> None:
        """`path` is what the files are named after: `path.0` is the lock of core 0."""
        self.path = path

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Hold the cores with others of this kind."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the cores with nobody else."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, mode: int) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as files:
            for core in cores():  # everyone in the same order: nobody waits in a circle
                file = files.enter_context(self.path.with_name(f"{self.path.name}.{core}").open("a"))
                fcntl.flock(file, mode)
            yield
