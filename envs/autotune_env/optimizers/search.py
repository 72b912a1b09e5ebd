"""How the optimisers are written: a search is a generator that yields rows and is sent what they came to.

    def search(self, view: View) -> Search:
        row = view.sample()
        loss = yield row                     # infinite where the configuration failed
        ...

The driver turns that into ask and tell. It remembers: what was tried before is answered at once and costs nothing, so
that a search that comes back to known configurations needs no memory of its own. One that yields nothing new
`PATIENCE` times in turn has an untried configuration tried at random, and one that returns is followed by random
search, so that no search stands still.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from envs.autotune_env.domain import NOWHERE, Domain
from envs.autotune_env.optimizers.models import FAILED, Memory
from envs.autotune_env.optimizers.neighbours import Neighbourhoods, Rows, neighbourhoods
from envs.autotune_env.oracle import Outcome

Search = Generator[int, float, None]
Indices = tuple[int, ...]

PATIENCE = 100
"""How often in turn a search may yield what is known."""

__all__ = ["FAILED", "PATIENCE", "Driver", "Search", "Searcher", "View", "accepts"]


class View:
    """What a search sees: the configurations, what it has tried, the part of the budget that is spent, and chance."""

    __slots__ = ("_memory", "_near", "_ranked", "domain", "losses", "rng", "seconds", "spent")

    def __init__(self, domain: Domain, rng: random.Random) -> None:
        self.domain = domain
        self.rng = rng
        self.spent = 0.0
        """The part of the budget that is spent, from 0 to 1."""
        self.losses: dict[int, float] = {}
        """The loss of each row that was tried, in order; infinite where it failed."""
        self.seconds: dict[int, float] = {}
        """What trying each of them cost."""
        self._near: Neighbourhoods = neighbourhoods(domain)
        self._ranked: list[tuple[float, int]] = []
        self._memory: Memory | None = None

    def record(self, row: int, loss: float, seconds: float = 0.0) -> None:
        """Note what a row came to, and what it cost."""
        self.losses[row], self.seconds[row] = loss, seconds
        if loss < FAILED:
            insort(self._ranked, (loss, row))

    @property
    def size(self) -> int:
        """How many configurations there are."""
        return len(self.domain)

    @property
    def best(self) -> int:
        """The best row so far; `NOWHERE` while nothing succeeded."""
        return self._ranked[0][1] if self._ranked else NOWHERE

    def elite(self, count: int) -> list[int]:
        """The best rows so far, best first; fewer while there are not so many."""
        return [row for _, row in self._ranked[:count]]

    def sample(self) -> int:
        """A row at random."""
        return self.rng.randrange(self.size)

    def samples(self, count: int) -> list[int]:
        """Different rows at random, at most as many as there are."""
        return self.rng.sample(range(self.size), min(count, self.size))

    def fresh(self) -> int:
        """An untried row at random; any row once everything was tried."""
        for _ in range(16):
            row = self.sample()
            if row not in self.losses:
                return row
        untried = np.setdiff1d(np.arange(self.size), np.fromiter(self.losses, np.int64, len(self.losses)))
        return int(self.rng.choice(untried)) if len(untried) else self.sample()

    def neighbours(self, row: int, kind: str = "hamming") -> Rows:
        """All neighbours of a row: see `neighbours.KINDS`."""
        return self._near.of(row, kind)

    def neighbour(self, row: int, kind: str = "hamming") -> int:
        """A neighbour at random; the row itself if it has none."""
        rows = self._near.of(row, kind)
        return int(rows[int(self.rng.random() * len(rows))]) if len(rows) else row

    def indices(self, row: int) -> Indices:
        """Which value each parameter has in a row, by position."""
        return self._near.indices[row]

    def row(self, indices: Sequence[int]) -> int:
        """The row with these values, or `NOWHERE`."""
        return self._near.rows.get(tuple(indices), NOWHERE)

    def repair(self, indices: Sequence[int]) -> int:
        """The row with these values; one of the nearest rows, at random, where no configuration has them."""
        row = self.row(indices)
        if row != NOWHERE:
            return row
        nearest = self._near.nearest(tuple(indices))
        return int(nearest[int(self.rng.random() * len(nearest))])

    def cross(self, first: int, second: int) -> int:
        """A row whose values come from either of two rows, each at random."""
        pairs = zip(self.indices(first), self.indices(second), strict=True)
        return self.repair([left if self.rng.random() < 0.5 else right for left, right in pairs])

    def predict(self, rows: Sequence[int], k: int) -> list[float]:
        """The mean loss of the k tried rows nearest to each row, by how many parameters differ; see `models`."""
        return self._model().nearest(rows, k)

    def effects(self, rows: Sequence[int]) -> list[float]:
        """What an additive model expects of each row: less is better, on no scale; see `models`."""
        return self._model().additive(rows)

    def _model(self) -> Memory:
        """The memory behind the models, brought up to date."""
        if self._memory is None:
            self._memory = Memory(self.domain)
        self._memory.update(self.losses)
        return self._memory


def accepts(rng: random.Random, new: float, old: float, temperature: float) -> bool:
    """Metropolis' rule on the relative loss: always what is no worse, else with probability exp(-worse/temperature)."""
    if new <= old:
        return True
    if new == FAILED or temperature <= 0:
        return False
    return rng.random() < math.exp((old - new) / abs(old) / temperature)


class Searcher(ABC):
    """An optimiser that is a search; its parameters are the fields of the class that derives from it."""

    __slots__ = ()

    @abstractmethod
    def search(self, view: View) -> Search:
        """Yield rows, receive losses; may return early."""

    def start(self, domain: Domain, rng: np.random.Generator) -> Driver:
        """Begin a run."""
        return Driver(self.search, View(domain, random.Random(int(rng.integers(2**63)))))


class Driver:
    """Runs a search by ask and tell."""

    __slots__ = ("_next", "_pending", "_search", "bored", "view")

    def __init__(self, search: Callable[[View], Search], view: View) -> None:
        self.view = view
        self._search: Search | None = search(view)
        self.bored = False
        """Whether the row asked for is not one of the search's own."""
        self._next = self._advance(None)

    def ask(self) -> int:
        return self._next

    def tell(self, row: int, outcome: Outcome, spent: float) -> None:
        """Record, and let the search go on to the next row that is not known."""
        loss = FAILED if outcome.status else outcome.loss
        self.view.spent = spent
        if row != NOWHERE:
            self.view.record(row, loss, outcome.seconds)
        self._next = self._advance(self._pending if self.bored else loss)

    def _advance(self, loss: float | None) -> int:
        known: Mapping[int, float] = self.view.losses
        self.bored = False
        if self._search is None:
            return self.view.fresh()
        try:
            row = next(self._search) if loss is None else self._search.send(loss)
            for _ in range(PATIENCE):
                if row not in known:
                    return row
                row = self._search.send(known[row])
        except StopIteration:
            self._search = None
            return self.view.fresh()
        if row in known:
            self.bored, self._pending = True, known[row]
            return self.view.fresh()
        return row
