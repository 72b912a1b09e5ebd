"""Two optimisers that a language model designed, written here from their published description.

Both come from "Automated Algorithm Design for Auto-Tuning Optimizers" (arXiv 2510.17899), where they did best. Theirs
is the control flow; the temperature acts on the relative loss, so that units don't matter, and schedules follow the
part of the budget that is spent. The elite set keeps the best, where the published code lets go of them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from envs.autotune_env.domain import NOWHERE
from envs.autotune_env.optimizers.search import Search, Searcher, View, accepts

REWARD, PENALTY = 1.1, 0.9
"""What the weight of a neighbourhood is multiplied by after a step that was taken, and after one that was not."""


@dataclass(frozen=True, slots=True)
class HybridVNDX(Searcher):
    """Variable neighbourhoods with a k-NN model, an elite to cross, a tabu list, annealing and restarts.

    Each step collects a pool (neighbours of a neighbourhood drawn by weight, a cross of two of the elite, strangers),
    and tries the one for which the mean of the nearest known losses is least.
    """

    k: int = 5
    pool: int = 8
    patience: int = 100
    """Steps in turn not taken before the search starts anew."""
    tabu: int = 300
    elite: int = 5
    hot: float = 1.0
    cooling: float = 0.995
    kinds: tuple[str, ...] = ("adjacent", "adjacent", "hamming")
    """The neighbourhoods. Where every value occurs, Kernel Tuner's `strictly-adjacent` and `adjacent` are the same."""

    def search(self, view: View) -> Search:
        rng = view.rng
        row = view.sample()
        loss = yield row
        tabu = deque([row], self.tabu)
        weights = [1.0] * len(self.kinds)
        temperature, refused = self.hot, 0
        while True:
            (kind,) = rng.choices(range(len(self.kinds)), weights)
            pool = self._pool(view, row, self.kinds[kind])
            scores = view.predict(pool, self.k)
            _, _, candidate = min(
                (candidate in tabu, score, candidate) for candidate, score in zip(pool, scores, strict=True)
            )
            found = yield candidate
            if accepts(rng, found, loss, temperature):
                row, loss, refused = candidate, found, 0
                tabu.append(row)
                weights[kind] *= REWARD
            else:
                refused += 1
                weights[kind] *= PENALTY
            weights = [weight / max(weights) for weight in weights]
            temperature *= self.cooling
            if refused >= self.patience:
                row, refused, temperature = view.sample(), 0, self.hot
                loss = yield row
                tabu.clear()
                tabu.append(row)

    def _pool(self, view: View, row: int, kind: str) -> list[int]:
        neighbours = view.neighbours(row, kind).tolist()
        pool = view.rng.sample(neighbours, min(len(neighbours), self.pool // 2))
        elite = view.elite(self.elite)
        if len(elite) >= 2:
            pool.append(view.cross(*view.rng.sample(elite, 2)))
        pool += view.samples(self.pool - len(pool))
        return list(dict.fromkeys(pool))


@dataclass(frozen=True, slots=True)
class AdaptiveTabuGreyWolf(Searcher):
    """Grey wolves (Mirjalili et al., 2014) on discrete values, with a tabu list, annealed acceptance and restarts.

    The three leaders live on. Every other wolf takes each value from a leader or itself, is shaken now and then, more
    so the longer nothing improved, and gives way to the child by Metropolis' rule.
    """

    pack: int = 8
    tabu: float = 3.0
    """The length of the tabu list, in packs."""
    shake: float = 0.2
    jump: float = 0.15
    """The probability that a shake copies one value of a stranger, instead of going to a neighbour."""
    patience: int = 80
    """Rounds without an improvement before the worst of the pack are replaced."""
    replaced: float = 0.3
    """Which part of the pack that is."""
    hot: float = 1.0
    cold: float = 1e-4
    decay: float = 5.0

    def __post_init__(self) -> None:
        if self.pack < 4:
            raise ValueError(f"a pack has 3 leaders and at least 1 follower, not {self.pack} wolves")

    def search(self, view: View) -> Search:
        rng = view.rng
        pack = []
        tabu: deque[int] = deque(maxlen=round(self.pack * self.tabu))
        for row in view.samples(self.pack):
            loss = yield row
            pack.append((loss, row))
            tabu.append(row)
        best, idle = min(pack)[0], 0
        while len(pack) > 3:
            temperature = max(self.cold, self.hot * math.exp(-self.decay * view.spent))
            if idle and idle % max(1, self.patience // 2) == 0:
                temperature += 0.2 * self.hot
            pack.sort()
            leaders = [row for _, row in pack[:3]]
            for place, (loss, row) in enumerate(pack[3:], 3):
                child = self._child(view, leaders, row, idle)
                if child in tabu:
                    child = view.neighbour(child)
                found = yield child
                tabu.append(child)
                if accepts(rng, found, loss, temperature):
                    pack[place] = found, child
            idle = idle + 1 if min(pack)[0] >= best else 0
            best = min(best, min(pack)[0])
            if idle >= self.patience:
                pack.sort()
                for place in range(len(pack) - math.ceil(len(pack) * self.replaced), len(pack)):
                    stranger = view.sample()
                    loss = yield stranger
                    pack[place] = loss, stranger
                    tabu.append(stranger)
                idle = 0

    def _child(self, view: View, leaders: list[int], row: int, idle: int) -> int:
        rng = view.rng
        parents = [view.indices(parent) for parent in (*leaders, row)]
        genes = [rng.choice(values) for values in zip(*parents, strict=True)]
        if rng.random() < min(0.5, self.shake * (1 + idle / self.patience)):
            if rng.random() < self.jump:
                position = rng.randrange(len(genes))
                genes[position] = view.indices(view.sample())[position]
            elif (shaken := view.row(genes)) != NOWHERE:
                return view.neighbour(shaken, "adjacent")
        return view.repair(genes)
