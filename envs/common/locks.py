"""Turns on a machine: many may build, or one may measure."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class Turns:
    """A lock file that processes share. The kernel frees it when a holder dies.

    Build and check under `together`, time under `alone`, so that no measurement runs beside another or beside
    a compiler.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Hold the machine with others of this kind."""
        with self._held(fcntl.LOCK_SH):
            yield

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the machine with nobody else."""
        with self._held(fcntl.LOCK_EX):
            yield

    @contextlib.contextmanager
    def _held(self, mode: int) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            fcntl.flock(file, mode)
            yield
