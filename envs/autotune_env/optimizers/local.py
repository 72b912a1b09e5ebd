"""Optimisers that walk from neighbour to neighbour: simulated annealing, and greedy iterated local search."""

from __future__ import annotations

from dataclasses import dataclass

from envs.autotune_env.optimizers.search import FAILED, Search, Searcher, View, accepts


@dataclass(frozen=True, slots=True)
class Annealing(Searcher):
    """Simulated annealing (Kirkpatrick et al., 1983) on the relative loss; the temperature falls with the budget."""

    hot: float = 0.1
    cold: float = 1e-4
    """Temperatures at the start and at the end, as shares of the current loss."""
    jump: float = 0.2
    """The probability of changing one parameter to any value, instead of several by one value."""
    patience: int = 100
    """Proposals in turn that were known before the walk starts anew somewhere else."""

    def search(self, view: View) -> Search:
        row = view.sample()
        loss = yield row
        stuck = 0
        while True:
            temperature = self.hot * (self.cold / self.hot) ** view.spent
            candidate = view.neighbour(row, "hamming" if view.rng.random() < self.jump else "adjacent")
            stuck = stuck + 1 if candidate in view.losses else 0
            if stuck >= self.patience:
                row, stuck = view.fresh(), 0
                loss = yield row
                continue
            found = yield candidate
            if accepts(view.rng, found, loss, temperature):
                row, loss = candidate, found


@dataclass(frozen=True, slots=True)
class IteratedLocalSearch(Searcher):
    """Greedy iterated local search (Lourenço et al., 2003): climb to a local optimum, disturb it, climb again."""

    kind: str = "hamming"
    kicks: float = 0.3
    """How many parameters a disturbance changes, as a share of all."""
    patience: int = 5
    """Climbs in turn without a gain before the next one starts somewhere else."""

    def search(self, view: View) -> Search:
        row = home = view.sample()
        loss = best = FAILED
        idle = 0
        while True:
            loss = yield row
            improved = True
            while improved:
                improved = False
                neighbours = view.neighbours(row, self.kind).tolist()
                view.rng.shuffle(neighbours)
                for candidate in neighbours:
                    found = yield candidate
                    if found < loss:
                        row, loss, improved = candidate, found, True
                        break
            if loss < best:
                home, best, idle = row, loss, 0
            else:
                idle += 1
            if idle >= self.patience:
                home, best, idle = view.fresh(), FAILED, 0
                row = home
                continue
            row = home
            for _ in range(max(1, round(self.kicks * len(view.domain.sizes)))):
                row = view.neighbour(row)
