"""Optimisers that keep a population: a genetic algorithm, differential evolution, particle swarms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from envs.autotune_env.optimizers.search import FAILED, Search, Searcher, View
from envs.autotune_env.optimizers.tree import Coordinates, tree

Genes = tuple[int, ...]

ATTEMPTS = 20
"""How often a child is drawn again that its generation holds already."""


def single_point(rng: Random, first: Genes, second: Genes) -> Genes:
    """The head of one and the tail of the other."""
    cut = rng.randrange(len(first))
    return first[:cut] + second[cut:]


def two_point(rng: Random, first: Genes, second: Genes) -> Genes:
    """One, with a stretch of the other."""
    begin, end = sorted(rng.choices(range(len(first) + 1), k=2))
    return first[:begin] + second[begin:end] + first[end:]


def uniform(rng: Random, first: Genes, second: Genes) -> Genes:
    """Each value from either."""
    return tuple(left if rng.random() < 0.5 else right for left, right in zip(first, second, strict=True))


CROSSOVERS: Mapping[str, Callable[[Random, Genes, Genes], Genes]] = {
    "single_point": single_point,
    "two_point": two_point,
    "uniform": uniform,
}


@dataclass(frozen=True, slots=True)
class Genetic(Searcher):
    """A generational genetic algorithm (Holland, 1975) over allowed configurations.

    Parents are drawn by rank from a Beta distribution, as in Kernel Tuner; a child that is no configuration becomes
    one of the nearest; `elite` of a generation live on.
    """

    population: int = 26
    crossover: str = "single_point"
    mutation: float = 0.02
    """The probability that a child has one value changed."""
    pressure: float = 2.5
    """The second parameter of the Beta distribution: more favours the best more."""
    elite: int = 0

    def __post_init__(self) -> None:
        if self.crossover not in CROSSOVERS:
            raise ValueError(f"a crossover is one of {', '.join(CROSSOVERS)}, not {self.crossover!r}")
        if self.population < 2:
            raise ValueError(f"a population has at least 2 members, not {self.population}")

    def search(self, view: View) -> Search:
        size = max(2, min(self.population, view.size // 2))
        generation = view.samples(size)
        while True:
            scored = []
            for row in generation:
                loss = yield row
                scored.append((loss, row))
            ranked = [row for _, row in sorted(scored)]
            generation = ranked[: self.elite]
            while len(generation) < size:
                generation.append(self._child(view, ranked, generation))

    def _child(self, view: View, ranked: list[int], taken: list[int]) -> int:
        """A child that the new generation lacks; a stranger where the parents give none."""
        rng, power = view.rng, 1 / self.pressure
        for _ in range(ATTEMPTS):
            # 1 - u^(1/b) of a uniform u is Beta(1, b)
            first, second = (ranked[int((1 - (1 - rng.random()) ** power) * len(ranked))] for _ in range(2))
            genes = CROSSOVERS[self.crossover](rng, view.indices(first), view.indices(second))
            child = view.repair(genes)
            if rng.random() < self.mutation:
                child = view.neighbour(child)
            if child not in taken:
                return child
        return view.fresh()


@dataclass(frozen=True, slots=True)
class DifferentialEvolution(Searcher):
    """Differential evolution, rand/1/bin (Storn and Price, 1997).

    Vectors lie in the unit cube; `tree` says which configuration a point means, so that every point means one. The
    defaults are those of pyATF.
    """

    population: int = 30
    weight: float = 0.7
    """F: how far a donor lies from its base, in differences of two others."""
    crossover: float = 0.2
    """CR: the probability that a coordinate comes from the donor."""

    def __post_init__(self) -> None:
        if self.population < 4:
            raise ValueError(f"differential evolution needs a population of 4 or more, not {self.population}")

    def search(self, view: View) -> Search:
        rng, points = view.rng, tree(view.domain)
        count = len(view.domain.sizes)
        vectors: list[Coordinates] = [tuple(1 - rng.random() for _ in range(count)) for _ in range(self.population)]
        losses = []
        for vector in vectors:
            loss = yield points.row(vector)
            losses.append(loss)
        while True:
            for place in range(self.population):
                trial = self._trial(rng, vectors, place)
                loss = yield points.row(trial)
                if loss <= losses[place]:
                    vectors[place], losses[place] = trial, loss

    def _trial(self, rng: Random, vectors: list[Coordinates], place: int) -> Coordinates:
        others = rng.sample(range(len(vectors) - 1), 3)
        base, plus, minus = (vectors[other + (other >= place)] for other in others)
        forced = rng.randrange(len(base))
        return tuple(
            _wrapped(base[at] + self.weight * (plus[at] - minus[at]))
            if at == forced or rng.random() < self.crossover
            else old
            for at, old in enumerate(vectors[place])
        )


def _wrapped(value: float) -> float:
    """A coordinate brought back into the cube, (0, 1]."""
    return value if 0 < value <= 1 else abs(value) % 1 or 1.0


@dataclass(frozen=True, slots=True)
class ParticleSwarm(Searcher):
    """Particle swarms with inertia (Kennedy and Eberhart, 1995; Shi and Eberhart, 1998).

    Particles move in the unit cube of value positions; each point means the configuration nearest to it. A swarm that
    comes to nothing new in a round is scattered.
    """

    particles: int = 20
    inertia: float = 0.5
    own: float = 2.0
    """The pull of the best that the particle has seen."""
    common: float = 1.5
    """The pull of the best that any has seen."""

    def search(self, view: View) -> Search:
        rng = view.rng
        spans = [size - 1 for size in view.domain.sizes]
        places, speeds = self._scattered(view)
        own = [(FAILED, place) for place in places]
        tried = -1
        while True:
            if len(view.losses) == tried:
                places, speeds = self._scattered(view)
                own = [(FAILED, place) for place in places]
            tried = len(view.losses)
            for number, place in enumerate(places):
                loss = yield view.repair([round(at * span) for at, span in zip(place, spans, strict=True)])
                if loss < own[number][0]:
                    own[number] = loss, place
            leader = min(own, key=lambda pair: pair[0])[1]
            for number, place in enumerate(places):
                first, second = self.own * rng.random(), self.common * rng.random()
                speeds[number] = [
                    self.inertia * speed + first * (mine - at) + second * (theirs - at)
                    for speed, mine, theirs, at in zip(speeds[number], own[number][1], leader, place, strict=True)
                ]
                places[number] = [
                    min(max(at + speed, 0.0), 1.0) for at, speed in zip(place, speeds[number], strict=True)
                ]

    def _scattered(self, view: View) -> tuple[list[list[float]], list[list[float]]]:
        """Places and speeds of particles at random."""
        spans = [size - 1 for size in view.domain.sizes]
        places = [
            [index / span for index, span in zip(view.indices(row), spans, strict=True)]
            for row in view.samples(self.particles)
        ]
        return places, [[view.rng.uniform(-0.5, 0.5) for _ in spans] for _ in places]
