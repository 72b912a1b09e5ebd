"""Progress on standard error: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

PERIOD = 5.0
"""Seconds between two lines where standard error is no terminal."""

Report = Callable[[int, str], None]
"""Called with how many are done and a line about the latest."""


@contextmanager
def progress(
    what: str, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[Report]:
    """Show on `stream` (standard error) how far `what` is, out of `total`, while the context lasts."""
    stream = stream or sys.stderr
    if stream.isatty():
        with _bar(what, total, stream) as report:
            yield report
    else:
        yield _lines(what, total, stream, clock)


@contextmanager
def _bar(what: str, total: int, stream: TextIO) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    latest = TextColumn("{task.fields[latest]}", markup=False, table_column=Column(no_wrap=True, ratio=1))
    shown = (TextColumn(what, markup=False), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn(), latest)
    with Progress(*shown, console=Console(file=stream), expand=True, transient=True) as bar:
        task = bar.add_task(what, total=total, latest="")
        yield lambda done, line: bar.update(task, completed=done, latest=line)


def _lines(what: str, total: int, stream: TextIO, clock: Callable[[], float]) -> Report:
    last = clock() - PERIOD

    def report(done: int, line: str) -> None:
        nonlocal last
        if clock() - last >= PERIOD or done == total:
            last = clock()
            print(f"{what} {done}/{total}  {line}", file=stream, flush=True)

    return report
