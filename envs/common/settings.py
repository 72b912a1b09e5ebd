"""The one module that reads environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envs.common.locks import cores


class SettingError(ValueError):
    """An environment variable holds something that its setting can't be."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set from outside."""

    cache: Path
    """LEIRGYM_CACHE: the folder of the store, of cached references and of the measurement lock."""
    threads: int
    """LEIRGYM_THREADS: threads that a measured kernel may use."""
    workers: int
    """LEIRGYM_WORKERS: candidates built and checked at once."""

    @property
    def store(self) -> Path:
        """The default store."""
        return self.cache / "store.sqlite"

    @property
    def lock(self) -> Path:
        """Held, core by core, while anything is timed on this machine (`locks.Turns`)."""
        return self.cache / f"measuring-{os.uname().nodename}.lock"


def settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings. Raises `SettingError`."""
    folder = environment.get("LEIRGYM_CACHE")
    if not folder:
        import platformdirs

        folder = platformdirs.user_cache_dir("leirgym")
    return Settings(
        Path(folder).expanduser(),
        _positive(environment, "LEIRGYM_THREADS", 1),
        _positive(environment, "LEIRGYM_WORKERS", len(cores())),
    )


def _positive(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or int(text) < 1:
        raise SettingError(f"{name} must be a whole number of at least 1, got {text!r}")
    return int(text)
