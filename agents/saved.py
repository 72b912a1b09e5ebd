"""Runs of a comparison in a file that grows by a line each, so that none is lost and none is repeated."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from agents.compare import Run, Task


class SavedRuns:
    """A file of runs (JSON lines). A last line that was cut is dropped; without a path, nothing is kept.

    Raises `ValueError` that names the line for a file of something else, and `OSError`.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[Task, Run] = {}
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                item = json.loads(line)
                run = Run.from_json(item["run"])
                self._runs[Task(run.workload, run.agent, run.seed, item["budget"])] = run
            except (KeyError, TypeError, ValueError) as error:
                if number == len(lines) > 1:
                    lines.pop()
                    break
                raise ValueError(f"line {number} is no run of a comparison: {type(error).__name__}: {error}") from None
        if path:
            path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def __contains__(self, task: Task) -> bool:
        return task in self._runs

    @property
    def runs(self) -> tuple[Run, ...]:
        """All of them, the oldest first."""
        return tuple(self._runs.values())

    def add(self, task: Task, run: Run) -> None:
        """Keep a run."""
        self._runs[task] = run
        if self._path:
            line = json.dumps({"budget": task.budget, "run": asdict(run)}, separators=(",", ":"))
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
