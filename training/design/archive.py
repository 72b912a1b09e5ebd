"""What a study has tried: one JSON object a line, appended and flushed to disk, so that a killed study resumes.

The first line holds the settings; a study resumes only with the same ones. A last line that was cut off is dropped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.design.race import Result, Rung


class ArchiveError(ValueError):
    """A file that is no archive, or that of another study; the message names the file and the line."""


@dataclass(frozen=True, slots=True)
class Record:
    """A program, where it comes from, and how it did."""

    number: int
    operator: str
    parents: tuple[int, ...]
    idea: str
    """One sentence."""
    source: str
    design: Mapping[str, Any] | None
    """Its genes, if it was composed from building blocks."""
    result: Result

    @property
    def fitness(self) -> float:
        """See `Result.fitness`."""
        return self.result.fitness


class Archive:
    """The records of a study, in memory and in a file."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self.records: list[Record] = []
        if path.exists() and path.stat().st_size:
            self._resume(settings)
        if not path.exists() or not path.stat().st_size:
            self._write({"settings": dict(settings)})

    def add(self, record: Record) -> None:
        """Append a record; it is on the disk when this returns."""
        self._write(asdict(record))
        self.records.append(record)

    def _resume(self, settings: Mapping[str, Any]) -> None:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        items = list(_lines(self.path, content[:whole]))
        if not items:
            return
        known = items[0].get("settings")
        if known != json.loads(json.dumps(dict(settings))):
            changed = [name for name in settings if (known or {}).get(name) != settings[name]]
            raise ArchiveError(f"{self.path}: it is the archive of another study: {', '.join(changed)} differ")
        try:
            self.records = [_record(item) for item in items[1:]]
        except (KeyError, TypeError) as error:
            raise ArchiveError(f"{self.path}: a record lacks {error}") from error

    def _write(self, item: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(item).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _lines(path: Path, content: bytes) -> Iterator[Any]:
    for number, line in enumerate(content.splitlines(), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ArchiveError(f"{path}: line {number} is no JSON") from error


def _record(item: Mapping[str, Any]) -> Record:
    result = item["result"]
    rungs = tuple(Rung(**rung) for rung in result["rungs"])
    return Record(**{**item, "parents": tuple(item["parents"]), "result": Result(**{**result, "rungs": rungs})})


def read(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """The settings and the records of a file, as far as it is whole. Raises `ArchiveError`."""
    content = path.read_bytes()
    items = list(_lines(path, content[: content.rfind(b"\n") + 1]))
    if not items or "settings" not in items[0]:
        raise ArchiveError(f"{path}: it does not begin with the settings of a study")
    return items[0]["settings"], [_record(item) for item in items[1:]]
