"""Searches over traces: simulated annealing and a genetic search.

A trace is changed where it stands (an action dropped, inserted, exchanged) or crossed with another, and replayed:
actions that no longer apply are skipped. After the evolutionary search over traces of MetaSchedule (Shao et al.,
NeurIPS 2022).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from agents.base import STALE, Explorer, Node, Search, by_value, new_ones, pipeline
from agents.frontier import Frontier
from agents.proposers import CostModel, Proposer
from envs.common.actions import Action

S = TypeVar("S")
Trace = tuple[Action, ...]


class Editor(Generic[S]):
    """Makes new states from the traces of old ones."""

    def __init__(self, search: Search[S], proposer: Proposer, depth: int, branch: int) -> None:
        self.search = search
        self._frontier = Frontier(search, proposer, branch)
        self._depth = depth

    def changed(self, node: Node[S]) -> Node[S]:
        """The trace of `node` with one change: an action appended, dropped, inserted, or exchanged for another."""
        rng, trace = self.search.rng, node.trace
        if not trace or rng.random() < 0.5:
            return self._extended(node)
        position = int(rng.integers(len(trace)))
        start = self.follow(trace[:position])
        kind = int(rng.integers(3))
        inserted = () if kind == 0 else self._extended(start).trace[len(start.trace) :]
        return self.follow((*start.trace, *inserted, *trace[position + (kind != 1) :]))

    def crossed(self, one: Node[S], other: Node[S]) -> Node[S]:
        """The beginning of one trace and the end of another."""
        rng = self.search.rng
        head = one.trace[: int(rng.integers(len(one.trace) + 1))]
        tail = other.trace[int(rng.integers(len(other.trace) + 1)) :]
        return self.follow((*head, *tail))

    def follow(self, actions: Trace) -> Node[S]:
        """Replay a trace from the root, as far as the longest may go."""
        return self._frontier.follow(self.search.root, actions[: self._depth])

    def _extended(self, node: Node[S]) -> Node[S]:
        """A successor, the more likely the better it is predicted to be."""
        if len(node.trace) >= self._depth or not self.search.fertile(node):
            return node
        found = self._frontier.successors(node)
        if not found:
            return node
        noise = self.search.rng.gumbel(size=len(found))
        ranks = np.arange(len(found))
        return found[int(np.argmax(noise - 0.3 * ranks))]


@dataclass(frozen=True, slots=True)
class Annealing(Explorer):
    """Simulated annealing (Kirkpatrick et al., Science 1983) of several traces side by side.

    The temperature falls geometrically with the evaluations spent. A worse state, by its measured log speedup, is
    accepted with the odds of Metropolis; one that failed never is.
    """

    chains: int = 4
    """Traces that change side by side; their new states are measured together."""
    hot: float = 0.5
    """Temperature at the start, in log speedup."""
    cold: float = 0.02
    """Temperature at the end."""
    depth: int = 40
    """Longest trace."""
    branch: int = 16
    """Successors considered of a state, plans aside."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        smallest = min(self.chains, self.depth, self.branch)
        if smallest < 1:
            raise ValueError(f"chains, depth and branch are at least 1, got {smallest}")
        if not 0 < self.cold <= self.hot:
            raise ValueError(f"temperatures fall from hot to cold > 0, got {self.hot} and {self.cold}")

    def _explore(self, search: Search[Any]) -> None:
        search.measure([search.root])
        editor = Editor(search, self.proposer, self.depth, self.branch)
        current = [search.root] * self.chains
        stale = 0
        while stale < STALE and not search.spent:
            proposed = [editor.changed(node) for node in current]
            stale = 0 if any(map(search.fresh, proposed)) else stale + 1
            search.measure(proposed)
            temperature = self.temperature(len(search.evaluations) / search.budget.evaluations)
            for chain, node in enumerate(proposed):
                if self._accepts(search, current[chain], node, temperature):
                    current[chain] = node

    def temperature(self, progress: float) -> float:
        """After a share of the budget."""
        return float(self.hot * (self.cold / self.hot) ** min(progress, 1.0))

    def _accepts(self, search: Search[Any], old: Node[Any], new: Node[Any], temperature: float) -> bool:
        value = search.value(new)
        if value is None:
            return False
        worse = (search.value(old) or 0.0) - value
        return bool(worse <= 0 or search.rng.random() < math.exp(-worse / temperature))


@dataclass(frozen=True, slots=True)
class Genetic(Explorer):
    """A genetic search: the fittest traces are crossed and mutated, and the offspring measured together."""

    population: int = 12
    """Traces that may be parents: the fastest so far."""
    offspring: int = 4
    """Traces measured in a generation, while the next one is born."""
    crossover: float = 0.5
    """Odds that a child has two parents."""
    depth: int = 40
    """Longest trace."""
    branch: int = 16
    """Successors considered of a state, plans aside."""
    proposer: Proposer = field(default_factory=CostModel)

    def __post_init__(self) -> None:
        smallest = min(self.population, self.offspring, self.depth, self.branch)
        if smallest < 1:
            raise ValueError(f"population, offspring, depth and branch are at least 1, got {smallest}")
        if not 0 <= self.crossover <= 1:
            raise ValueError(f"crossover is a probability, got {self.crossover}")

    def _explore(self, search: Search[Any]) -> None:
        editor = Editor(search, self.proposer, self.depth, self.branch)

        def choose() -> list[Node[Any]]:
            parents = by_value(search, search.measured)[: self.population] or [search.root]
            return new_ones(search, lambda: self._child(search, editor, parents), self.offspring)

        pipeline(search, choose)

    def _child(self, search: Search[Any], editor: Editor[Any], parents: Sequence[Node[Any]]) -> Node[Any]:
        first = _tournament(parents, search.rng)
        if search.rng.random() >= self.crossover:
            return editor.changed(first)
        return editor.crossed(first, _tournament(parents, search.rng))


def _tournament(ranked: Sequence[Node[S]], rng: np.random.Generator) -> Node[S]:
    """The fitter of two, drawn at random."""
    return ranked[int(rng.integers(len(ranked), size=2).min())]
