"""Code that calls a function for every evaluation, as an optimiser that is asked and told.

The code runs in a thread of its own, and stands still while it is not its turn: only one of the two threads ever
runs, so that a run is as repeatable as the code is. When the run is dropped, the function raises `Dropped` inside the
code, which ends the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from envs.autotune_env.optimizers.search import FAILED, Search

Evaluate = Callable[[int], float]
"""From a row to its loss: infinite if it failed."""


class Dropped(BaseException):
    """The run is over. No `Exception`, so that code which catches those ends as well."""


class Turns:
    """The two ends between the thread of the code and that of the tuner."""

    def __init__(self) -> None:
        self.wanted: SimpleQueue[int | BaseException | None] = SimpleQueue()
        """Rows that the code wants; an exception if it failed, None when it has returned."""
        self.losses: SimpleQueue[float | None] = SimpleQueue()
        """What they came to; None when the run is dropped."""
        self._dropped = False

    def evaluate(self, row: int) -> float:
        """Have a row evaluated; called by the code."""
        if not self._dropped:
            self.wanted.put(row)
            loss = self.losses.get()
            if loss is not None:
                return loss
            self._dropped = True
        raise Dropped


def inverted(code: Callable[[Evaluate], None]) -> Search:
    """The search that `code` makes when it is given a function to evaluate rows with.

    What the code raises is raised here.
    """
    turns = Turns()

    def run() -> None:
        try:
            turns.losses.get()
            code(turns.evaluate)
            turns.wanted.put(None)
        except Dropped:
            pass
        except BaseException as error:  # noqa: BLE001 (it belongs to the other thread)
            turns.wanted.put(error)

    thread = threading.Thread(target=run, daemon=True, name="inverted optimiser")
    thread.start()
    try:
        loss: float = FAILED
        while True:
            turns.losses.put(loss)
            wanted = turns.wanted.get()
            if wanted is None:
                return
            if isinstance(wanted, BaseException):
                raise wanted
            loss = yield wanted
    finally:
        turns.losses.put(None)
        thread.join()
